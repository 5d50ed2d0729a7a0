"""The readable source of the demo's data set `rows.parquet`: short maths questions in verl's row format, each with one
recorded model answer to replay. It is a fixture for reward functions, neither training data nor a benchmark.

`python tests/demo/build_rows.py` writes the file that ships with the demo.
"""

from pathlib import Path
from typing import Any, Literal, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

PARQUET = Path(__file__).parents[2] / "verl_ext" / "demo" / "rows.parquet"

SCHEMA = pa.schema(
    {
        "data_source": pa.string(),
        "prompt": pa.list_(pa.struct({"role": pa.string(), "content": pa.string()})),
        "ability": pa.string(),
        "reward_model": pa.struct({"style": pa.string(), "ground_truth": pa.string()}),
        "extra_info": pa.struct({"split": pa.string(), "index": pa.int64(), "recorded": pa.string()}),
        "response": pa.string(),
    }
)


class Row(NamedTuple):
    """One question and one recorded answer.

    `recorded` says what verl's scorer should make of the answer: *right* earns 1.0, *wrong* states another final answer
    in the expected format, *unparsable* has no final answer in that format, whatever its working is worth.
    """

    recorded: Literal["right", "wrong", "unparsable"]
    question: str
    ground_truth: str
    response: str


# How each data source asks for the final answer, as its scorer in `verl.utils.reward_score` parses it.
INSTRUCTION = {
    "openai/gsm8k": 'Think step by step and give the final number after "####".',
    "math_dapo": 'Think step by step. The last line must be "Answer: N", where N is the final answer.',
    "lighteval/MATH": "Think step by step and put the final answer within \\boxed{}.",
}

# `reward_score.gsm8k` reads the number after the last "#### " in the final 300 characters, removes commas and compares
# text: "10.50" is not "10.5".
GSM8K = [
    Row(
        "right",
        "A bakery packs its rolls in trays of 24. On Monday it fills 15 trays and has 9 rolls left over. "
        "How many rolls did it bake?",
        "369",
        "The trays hold 15 * 24 = 360 rolls. With the 9 left over that is 360 + 9 = 369.\n#### 369",
    ),
    Row(
        "right",
        "Ines reads 18 pages on each of the five school days and 35 pages on each of the two weekend days. "
        "How many pages does she read in a week?",
        "160",
        "School days: 5 * 18 = 90. Weekend: 2 * 35 = 70. Together 90 + 70 = 160.\n#### 160",
    ),
    Row(
        "wrong",
        "A ferry has space for 46 cars. On Saturday it makes 7 crossings, all of them full but the last, where 19 "
        "spaces stay empty. How many cars does it carry on Saturday?",
        "303",
        "Each crossing carries 46 cars and there are 7 crossings, so 7 * 46 = 322.\n#### 322",
    ),
    Row(
        "unparsable",
        "Noor saves 12 euros a week. After 9 weeks she spends 45 euros on a drum pad. How many euros are left?",
        "63",
        "She saves 9 * 12 = 108 euros. After the drum pad she has 108 - 45 = 63, so Noor has 63 euros left.",
    ),
    Row(
        "right",
        "A tank holds 900 litres. A pump adds 35 litres a minute while a leak loses 5 litres a minute. "
        "How many minutes does it take to fill the empty tank?",
        "30",
        "The tank gains 35 - 5 = 30 litres a minute, and 900 / 30 = 30 minutes.\n#### 30",
    ),
    Row(
        "right",
        "A school buys 25 chairs at 32 dollars each and 6 tables at 75 dollars each. How many dollars does it pay?",
        "1250",
        "Chairs: 25 * 32 = 800. Tables: 6 * 75 = 450. Total: 800 + 450 = 1,250 dollars.\n#### 1,250",
    ),
    Row(
        "wrong",
        "Three friends share a taxi in equal parts. The ride costs 27 dollars and they add a tip of 6 dollars. "
        "How many dollars does each of them pay?",
        "11",
        "The ride costs 27 dollars. Shared by three that is 27 / 3 = 9 dollars each.\n#### 9",
    ),
    Row(
        "right",
        "A ribbon is 20 metres long. Lucia cuts off 14 pieces of 125 centimetres. How many centimetres are left?",
        "250",
        "20 metres are 2000 cm. The pieces take 14 * 125 = 1750 cm. 2000 - 1750 = 250 cm are left.\n#### 250",
    ),
    Row(
        "unparsable",
        "Jeans cost 60 dollars and a jacket costs 80 dollars. Today everything is 40% off. "
        "How many dollars do the two cost together?",
        "84",
        "Without the discount they cost 60 + 80 = 140. You pay 60% of it: 0.6 * 140 = 84.\n#### $84",
    ),
    Row(
        "right",
        "A train leaves at 9:40 and arrives at 13:05 on the same day. On the way it stands in stations for 25 minutes "
        "altogether. For how many minutes does it move?",
        "180",
        "From 9:40 to 13:05 are 3 hours and 25 minutes, 205 minutes. It moves for 205 - 25 = 180 minutes.\n#### 180",
    ),
    Row(
        "right",
        "Omar plants 8 rows of 12 lettuces. Snails eat a quarter of the lettuces. How many are left?",
        "72",
        "He plants 8 * 12 = 96. A quarter is 24, so 96 - 24 = 72 are left.\n#### 72",
    ),
    Row(
        "wrong",
        "A cinema has 18 rows of 22 seats. For one film 57 seats stay empty. A ticket costs 8 dollars. "
        "How many dollars do the tickets bring in?",
        "2712",
        "There are 18 * 22 = 396 seats, and 396 - 57 = 339 are sold. 339 * 8 = 2612.\n#### 2612",
    ),
    Row(
        "right",
        "At noon it is 5 degrees. Then the temperature falls by 2 degrees an hour for 6 hours. "
        "How many degrees is it then?",
        "-7",
        "It falls by 6 * 2 = 12 degrees. 5 - 12 = -7.\n#### -7",
    ),
    Row(
        "unparsable",
        "A farmer has three times as many hens as ducks, 96 birds in all. How many hens are there?",
        "72",
        "Let d be the number of ducks. There are 3d hens, and d + 3d = 96. So 4d = 96, which gives d =",
    ),
    Row(
        "right",
        "A printer prints 16 pages a minute. It is switched on for two and a half hours and pauses for 10 minutes "
        "of that time. How many pages does it print?",
        "2240",
        "Two and a half hours are 150 minutes. It prints for 150 - 10 = 140 of them. 140 * 16 = 2240.\n#### 2240",
    ),
    Row(
        "right",
        "Ravi runs 4 laps of a 400 metre track and then walks 2 laps. How many metres more does he run than walk?",
        "800",
        "He runs 4 * 400 = 1600 metres and walks 2 * 400 = 800 metres. 1600 - 800 = 800.\n#### 800",
    ),
    Row(
        "right",
        "A box holds 6 bags of 8 marbles. Twelve children share 5 boxes equally. How many marbles does each child get?",
        "20",
        "One box holds 6 * 8 = 48 marbles, five hold 240. Each child gets 240 / 12 = 20.\n#### 20",
    ),
    Row(
        "right",
        "A pencil costs 0.75 dollars and a notebook 2.50 dollars. How many dollars do 4 pencils and 3 notebooks cost?",
        "10.5",
        "Pencils: 4 * 0.75 = 3. Notebooks: 3 * 2.50 = 7.5. Together 10.5 dollars.\n#### 10.5",
    ),
    Row(
        "unparsable",
        "A gardener has 180 bulbs. One third are tulips. Of the others, three eighths are daffodils. "
        "How many daffodil bulbs are there?",
        "45",
        "Tulips: 180 / 3 = 60, which leaves 120. Three eighths of 120 are 45.\n\n**Final answer: 45**",
    ),
    Row(
        "right",
        "Sam is four times as old as his sister. In 6 years he will be twice as old as she will be then. "
        "How old is Sam now?",
        "12",
        "Let s be her age. 4s + 6 = 2(s + 6), so 2s = 6 and s = 3. Sam is 4 * 3 = 12.\n#### 12",
    ),
    Row(
        "wrong",
        "A phone plan costs 15 dollars a month, and 3 dollars more for each gigabyte above 5. Leah uses 9 gigabytes in "
        "March and 4 in April. How many dollars does she pay for the two months together?",
        "42",
        "March: 15 + 4 * 3 = 27. April is one gigabyte below, so 15 - 3 = 12. 27 + 12 = 39.\n#### 39",
    ),
    Row(
        "right",
        "Half of a 48 kilometre bicycle route is flat. A third of the rest goes uphill, and the remainder goes "
        "downhill. How many kilometres go downhill?",
        "16",
        "The flat half is 24 km, which leaves 24 km. Uphill are 24 / 3 = 8 km, downhill 24 - 8 = 16 km.\n#### 16",
    ),
]

# `reward_score.math_dapo` reads the rest of the line after the last "Answer:" in the final 300 characters. Since verl
# 0.9.1 it also falls back to \boxed{}; no answer here has one, so that every verl scores these rows alike.
MATH_DAPO = [
    Row(
        "right",
        "How many positive integers below 200 are divisible by 6 but not by 9?",
        "22",
        "There are 33 multiples of 6 below 200. Those divisible by 9 too are the 11 multiples of 18. 33 - 11 = 22.\n"
        "Answer: 22",
    ),
    Row(
        "wrong",
        "What is the remainder when $7^{50}$ is divided by 13?",
        "10",
        "By Fermat $7^{12}$ leaves 1. Since 50 = 4 * 12 + 1, what is left is 7.\nAnswer: 7",
    ),
    Row(
        "right",
        "Find the sum of all two-digit primes both of whose digits are prime.",
        "186",
        "The digits are 2, 3, 5 or 7. The primes among these numbers are 23, 37, 53 and 73, with sum 186.\nAnswer: 186",
    ),
    Row(
        "right",
        "The roots of $x^2 - 9x + 5$ are $p$ and $q$. Find $p^2 + q^2$.",
        "71",
        "$p + q = 9$ and $pq = 5$, so $p^2 + q^2 = 81 - 10 = 71$.\nAnswer: $71$",
    ),
    Row(
        "unparsable",
        "In how many ways can 4 couples sit in a row of 8 seats so that each couple sits together?",
        "384",
        "The couples can be ordered in 4! = 24 ways and each can swap seats, $2^4 = 16$ ways. 24 * 16 = 384.",
    ),
    Row(
        "right",
        "Let $a_1 = 3$ and $a_{n+1} = 2a_n - 1$. Find $a_{10}$.",
        "1025",
        "$a_{n+1} - 1 = 2(a_n - 1)$, so $a_n = 2^n + 1$ and $a_{10} = 1025$.\nAnswer: 1,025",
    ),
    Row(
        "wrong",
        "How many integers $n$ satisfy $n^2 < 12n - 20$?",
        "7",
        "$n^2 - 12n + 20 = (n - 2)(n - 10)$, so n goes from 2 to 10, which makes 9 integers.\nAnswer: 9",
    ),
    Row(
        "right",
        "What is the smallest positive integer with exactly 10 divisors?",
        "48",
        "10 = 5 * 2 needs $p^4 q$ (or $p^9$, which is larger). The smallest is $2^4 \\cdot 3 = 48$.\nAnswer: 48",
    ),
    Row(
        "wrong",
        "How many four-digit numbers have digits that strictly decrease from left to right?",
        "210",
        "Any 4 of the digits 1 to 9 can be put in decreasing order in one way. $\\binom{9}{4} = 126$.\nAnswer: 126",
    ),
    Row(
        "right",
        "Find the number formed by the last two digits of $3^{45}$.",
        "43",
        "$3^{20}$ leaves 1 modulo 100, so $3^{45}$ ends as $3^5 = 243$ does.\nAnswer: 43",
    ),
    Row(
        "unparsable",
        "A right triangle has integer sides. Its hypotenuse is one longer than its longer leg, and its perimeter is "
        "90. Find its area.",
        "180",
        "Let the legs be $a < b$. Then $a^2 = (b + 1)^2 - b^2 = 2b + 1$ and $a + 2b + 1 = 90$, so $a^2 + a = 90$ and",
    ),
    Row(
        "right",
        "A bag holds 5 red and 4 blue balls. Two are drawn without replacement. The probability that their colours "
        "differ is $m/n$ in lowest terms. Find $m + n$.",
        "14",
        "There are 36 pairs, and 5 * 4 = 20 have two colours. 20/36 = 5/9, and 5 + 9 = 14.\nAnswer: m + n = 14",
    ),
    Row(
        "wrong",
        "What is the largest integer $k$ such that $3^k$ divides $40!$?",
        "18",
        "Every third factor is a multiple of 3, and 40 / 3 rounds down to 13.\nAnswer: 13",
    ),
    Row(
        "right",
        "How many points with integer coordinates lie on or inside the circle $x^2 + y^2 = 10$?",
        "37",
        "x = 0 gives 7 points, x = 1 or -1 gives 7 each, x = 2 or -2 gives 5 each, x = 3 or -3 gives 3 each. "
        "7 + 14 + 10 + 6 = 37.\nAnswer: 37",
    ),
    Row(
        "unparsable",
        "The sum of 15 consecutive integers is 45. Find the largest of them.",
        "10",
        "The middle one is 45 / 15 = 3, and the largest is 7 above it. The answer is 10.",
    ),
    Row(
        "right",
        "Find the minimum of $x^2 - 10x + 3$ over the real numbers.",
        "-22",
        "$x^2 - 10x + 3 = (x - 5)^2 - 22$.\nAnswer: -22",
    ),
    Row(
        "wrong",
        "Find the number of ordered pairs of positive integers $(x, y)$ with $1/x + 1/y = 1/6$.",
        "9",
        "$(x - 6)(y - 6) = 36$, and 36 = 1 * 36 = 2 * 18 = 3 * 12 = 4 * 9 = 6 * 6, which makes 5.\nAnswer: 5",
    ),
    Row(
        "right",
        "How many strings of 5 letters, each A or B, have no two As next to each other?",
        "13",
        "The counts for 1, 2, 3, ... letters are 2, 3, 5, 8, 13, each the sum of the two before.\nAnswer: 13",
    ),
    Row(
        "wrong",
        "Find the least positive integer $n$ for which $n^2 + n + 17$ is not prime.",
        "16",
        "n = 1, 2, 3, 4, 5 give 19, 23, 29, 37, 47, all prime, and the pattern goes on.\nAnswer: no such n exists",
    ),
    Row(
        "right",
        "Find the sum of the digits of 2024 written in base 7.",
        "14",
        "2024 = 5 * 343 + 6 * 49 + 2 * 7 + 1, which is 5621 in base 7. 5 + 6 + 2 + 1 = 14.\nAnswer: 14",
    ),
    Row(
        "unparsable",
        "Each interior angle of a regular polygon is 156 degrees. How many diagonals does the polygon have?",
        "90",
        "Let me try a hexagon first. Its angles are 120 degrees, too small. An octagon has 135 degrees, too small. "
        "A decagon has 144 degrees, still too small. Let me try",
    ),
    Row(
        "right",
        "Find the sum of all positive integers $n$ for which $(n + 12)/n$ is an integer.",
        "28",
        "n must divide 12. 1 + 2 + 3 + 4 + 6 + 12 = 28.\nAnswer: 28",
    ),
]

# `reward_score.math_reward` reads the last \boxed{...} with balanced braces and compares LaTeX after light clean-up.
MATH = [
    Row(
        "right",
        r"Write $\frac{3}{4} + \frac{5}{6}$ as a fraction in lowest terms.",
        r"\frac{19}{12}",
        r"$\frac{9}{12} + \frac{10}{12} = \frac{19}{12}$. The sum is $\boxed{\frac{19}{12}}$.",
    ),
    Row(
        "right",
        r"Solve $3(2x - 5) = 2x + 9$ for $x$.",
        r"6",
        r"$6x - 15 = 2x + 9$, so $4x = 24$. $\boxed{x = 6}$",
    ),
    Row(
        "unparsable",
        r"Simplify $\sqrt{72}$.",
        r"6\sqrt{2}",
        r"$72 = 36 \cdot 2$, and the root of 36 is 6. The simplified form is $6\sqrt{2}$.",
    ),
    Row(
        "wrong",
        r"Factor $x^2 - x - 12$ over the integers.",
        r"(x-4)(x+3)",
        r"We need two numbers with product -12 and sum 1: 4 and -3. $\boxed{(x-3)(x+4)}$",
    ),
    Row(
        "right",
        r"Find the area of a circle with diameter 10.",
        r"25\pi",
        r"The radius is 5, so the area is $\pi \cdot 5^2 = \boxed{25\pi}$.",
    ),
    Row(
        "wrong",
        r"Two fair dice are rolled. Find the probability that the sum is at least 10, as a fraction in lowest terms.",
        r"\frac{1}{6}",
        r"The pairs are (4,6), (5,5), (6,4), (5,6) and (6,5). The probability is $\boxed{\frac{5}{36}}$.",
    ),
    Row(
        "right",
        r"Find the vertex of the parabola $y = x^2 - 4x + 7$.",
        r"(2,3)",
        r"$y = (x - 2)^2 + 3$, so the vertex is $\boxed{\left(2, 3\right)}$.",
    ),
    Row(
        "right",
        r"Evaluate $\log_2 32 + \log_3 \frac{1}{9}$.",
        r"3",
        r"$\log_2 32 = 5$ and $\log_3 \frac{1}{9} = -2$. The sum is $\boxed{3}$.",
    ),
    Row(
        "wrong",
        r"In how many distinct orders can the letters of the word LEVEL be written?",
        r"30",
        r"There are $5! = 120$ orders, and the two Ls are alike, so $120 / 2 = \boxed{60}$.",
    ),
    Row(
        "unparsable",
        r"Let $f(x) = \frac{2x - 1}{3}$. Find $f^{-1}(x)$ as a single fraction.",
        r"\frac{3x+1}{2}",
        r"From $3y = 2x - 1$ we get $x = \frac{3y + 1}{2}$. Therefore $f^{-1}(x) = \boxed{\frac{3x + 1}{2",
    ),
    Row(
        "right",
        r"Convert 75 degrees to radians.",
        r"\frac{5\pi}{12}",
        r"$75 \cdot \frac{\pi}{180} = \boxed{\frac{5\pi}{12}}$.",
    ),
    Row(
        "right",
        r"Find the slope of the line through $(-2, 5)$ and $(4, 1)$.",
        r"-\frac{2}{3}",
        r"$\frac{1 - 5}{4 - (-2)} = \frac{-4}{6} = \boxed{-\dfrac{2}{3}}$.",
    ),
    Row(
        "wrong",
        r"Solve $|2x - 3| < 5$. Give the solution in interval notation.",
        r"(-1,4)",
        r"$-5 < 2x - 3 < 5$ gives $-2 < 2x < 8$. The solution is $\boxed{[-1, 4]}$.",
    ),
    Row(
        "right",
        r"Find the distance between $(1, -2)$ and $(5, 4)$ in simplest radical form.",
        r"2\sqrt{13}",
        r"$\sqrt{4^2 + 6^2} = \sqrt{52} = \boxed{2\sqrt{13}}$.",
    ),
    Row(
        "right",
        r"A fair coin is tossed four times. Find the probability of exactly two heads, as a fraction in lowest terms.",
        r"\frac{3}{8}",
        r"6 of the 16 sequences have two heads, so it is $\boxed{3/8}$.",
    ),
    Row(
        "wrong",
        r"Find the remainder when $x^3 - 2x + 5$ is divided by $x - 2$.",
        r"9",
        r"At $x = -2$ the polynomial is $-8 + 4 + 5 = 1$. The remainder is $\boxed{1}$.",
    ),
    Row(
        "unparsable",
        r"Find the sum of the infinite geometric series $6 + 2 + \frac{2}{3} + \cdots$.",
        r"9",
        r"The ratio is $\frac{1}{3}$, so the sum is $6 \div \frac{2}{3}$. **The sum is 9.**",
    ),
    Row(
        "right",
        r"Write $0.\overline{27}$ as a fraction in lowest terms.",
        r"\frac{3}{11}",
        r"$100x - x = 27$, so $x = \frac{27}{99} = \boxed{\frac{3}{11}}$.",
    ),
    Row(
        "right",
        r"A right triangle has legs 5 and 12. Find the sine of its smallest angle.",
        r"\frac{5}{13}",
        r"The hypotenuse is 13 and the smallest angle is opposite 5: $\boxed{\frac5{13}}$.",
    ),
    Row(
        "wrong",
        r"Find the determinant of $\begin{pmatrix} 4 & -3 \\ 2 & 5 \end{pmatrix}$.",
        r"26",
        r"$4 \cdot 5 - 3 \cdot 2 = 20 - 6 = \boxed{14}$.",
    ),
    Row(
        "unparsable",
        r"Expand $(x - 3)^2 (x + 1)$.",
        r"x^3-5x^2+3x+9",
        r"First $(x - 3)^2 = x^2 - 6x + 9$. Now multiply by $x + 1$: $x^3 + x^2 - 6x^2 - 6x + 9x",
    ),
    Row(
        "right",
        r"Rationalise the denominator of $\frac{6}{\sqrt{7} - 1}$ and simplify.",
        r"\sqrt{7}+1",
        r"$\frac{6(\sqrt{7} + 1)}{7 - 1} = \boxed{\sqrt7 + 1}$.",
    ),
]


def rows() -> list[dict[str, Any]]:
    """All rows of `rows.parquet`: the data sources take turns, GSM8K first, so that any short slice mixes schemas."""
    turns = zip(GSM8K, MATH_DAPO, MATH, strict=True)
    ordered = [(source, row) for turn in turns for source, row in zip(INSTRUCTION, turn, strict=True)]
    return [
        {
            "data_source": source,
            "prompt": [{"role": "user", "content": f"{row.question}\n\n{INSTRUCTION[source]}"}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": row.ground_truth},
            "extra_info": {"split": "test", "index": index, "recorded": row.recorded},
            "response": row.response,
        }
        for index, (source, row) in enumerate(ordered)
    ]


def main() -> None:
    """Write `rows.parquet`."""
    pq.write_table(pa.Table.from_pylist(rows(), schema=SCHEMA), PARQUET)


if __name__ == "__main__":
    main()
