/* Rows to columns in one pass: the one loop that matters, compiled. `core.py` says when it runs and what it is given.

   read(rows, short, renew) -> {key: (array, types, filled)}, or None for rows that it does not read

It decides nothing: dtypes are `schema.py`'s. Each column comes back as it was found: an object array, with None where a
row lacks the key; or, where every row has the key with a value of exactly one type, the numbers (float64, int64), the
bools or the text of at most `short` characters. Beside it are the types of its values (None where they are more than a
few) and how many rows have it.

It reads lists of exact dicts and None, with keys that are exact str. Of anything else, and of rows that change
meanwhile, it makes nothing: the version in Python reads them, and has the words for what is wrong.

While a row is walked, no Python code runs: no other thread and no method of a user's gets in between. What needs Python,
a new array, ends the walk; then the row is walked again from its first key, and what is written of it already stays.

Any cell of an object array owns what it holds at any time, so on an error the arrays are just let go. References are
counted by the functions Py_IncRef and Py_DecRef where a macro would do elsewhere: a macro of an older Python does not
know the immortal objects of a newer one (PEP 683), and would wear out its None. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

#define SLOT_BITS 11
#define MOST_TYPES 8
#define STRETCH 200000 /* values between two looks at Ctrl-C and two turns for other threads: some milliseconds */

typedef struct {
    Py_ssize_t next;       /* the row after the last one that has the key */
    char *cells;           /* the memory of `array` */
    Py_ssize_t width;      /* bytes of a cell */
    PyTypeObject *type;    /* of the value before, one of `types` */
    Py_ssize_t filled;     /* rows that have the key */
    int kind;              /* NumPy's letter: O, d, q, ? or U */
    int count;             /* of `types`; MOST_TYPES + 1: there were more */
    PyObject *key, *array;
    PyTypeObject *types[MOST_TYPES];
} Column;

typedef struct {
    PyObject *rows, *renew;
    Py_ssize_t length, short_text;
    PyObject *numbers;     /* by key, the place of its column among `columns` */
    Column *columns;
    Py_ssize_t used, room;
    Py_ssize_t written;    /* values of the row that is read */
    /* By the address of a key, the same. A slot owns its key: another one cannot come to its address. */
    struct { PyObject *key; Py_ssize_t number; } slots[1 << SLOT_BITS];
} Pass;

typedef enum { FAILED = -1, DONE, AGAIN, NOT_OURS } Outcome; /* FAILED: with an exception set */

/* Types are told apart by address, since to hash a class may run Python. */
static void note_type(Column *column, PyTypeObject *type) {
    for (int i = 0; i < column->count && i < MOST_TYPES; i++) {
        if (column->types[i] == type) {
            column->type = type;
            return;
        }
    }
    if (column->count < MOST_TYPES) {
        Py_IncRef((PyObject *)type);
        column->types[column->count] = column->type = type;
    }
    column->count += column->count <= MOST_TYPES;
}

/* A new array for a column, with what the old one holds. Runs Python. */
static Outcome renewed(Pass *pass, Column *column, int kind, Py_ssize_t letters) {
    PyObject *old = column->array ? column->array : Py_None, *array, *address;
    PyObject *made = PyObject_CallFunction(pass->renew, "COnOn", kind, column->key, letters, old, column->next);
    Py_ssize_t width;
    Outcome outcome = made == Py_None ? NOT_OURS : FAILED;
    if (outcome == FAILED && made && PyArg_ParseTuple(made, "OOn", &array, &address, &width)) {
        char *cells = PyLong_AsVoidPtr(address);
        if (!PyErr_Occurred()) {
            Py_IncRef(array);
            Py_DecRef(column->array);
            column->array = array;
            column->cells = cells;
            column->width = width;
            column->kind = kind;
            if (kind == 'O' && column->filled) {
                note_type(column, column->type);
            } else if (kind == 'O') {
                column->type = NULL; /* the first value was not written: an integer beyond int64, text with a NUL */
            }
            outcome = AGAIN;
        }
    }
    Py_DecRef(made);
    return outcome;
}

static Outcome new_column(Pass *pass, PyObject *key, PyObject *value, Py_ssize_t row) {
    if (pass->used == pass->room) {
        Py_ssize_t room = pass->room ? 2 * pass->room : 32;
        Column *columns = PyMem_Realloc(pass->columns, (size_t)room * sizeof(Column));
        if (!columns) {
            PyErr_NoMemory();
            return FAILED;
        }
        pass->columns = columns;
        pass->room = room;
    }
    PyObject *number = PyLong_FromSsize_t(pass->used);
    int failed = !number || PyDict_SetItem(pass->numbers, key, number) < 0;
    Py_DecRef(number);
    if (failed) {
        return FAILED;
    }
    PyTypeObject *type = Py_TYPE(value);
    Py_ssize_t letters = type == &PyUnicode_Type ? PyUnicode_GetLength(value) : 0;
    int kind = row > 0 ? 'O' /* the rows before lack the key */
               : type == &PyFloat_Type ? 'd' : type == &PyLong_Type ? 'q' : type == &PyBool_Type ? '?'
               : type == &PyUnicode_Type && letters <= pass->short_text ? 'U' : 'O';
    Column *column = &pass->columns[pass->used++];
    *column = (Column){.key = key, .type = type};
    Py_IncRef(key);
    return renewed(pass, column, kind, letters);
}

/* The column of a key that its slot does not know, and into the slot with it; NULL where there is none, or an error. */
static Column *looked_up(Pass *pass, PyObject *key, size_t slot) {
    PyObject *number = PyDict_GetItemWithError(pass->numbers, key);
    if (!number) {
        return NULL;
    }
    Py_IncRef(key);
    Py_DecRef(pass->slots[slot].key);
    pass->slots[slot].key = key;
    pass->slots[slot].number = PyLong_AsSsize_t(number);
    return &pass->columns[pass->slots[slot].number];
}

static void put_object(Column *column, Py_ssize_t row, PyObject *value) {
    PyObject **cell = (PyObject **)column->cells + row, *none = *cell;
    if (Py_TYPE(value) != column->type) {
        note_type(column, Py_TYPE(value));
    }
    Py_IncRef(value);
    *cell = value;
    Py_DecRef(none);
}

/* Write a value into an array of one type; if it is none for it, the kind of array that the column needs instead. */
static int put_exact(Pass *pass, Column *column, Py_ssize_t row, PyObject *value, Py_ssize_t *letters) {
    char *cell = column->cells + row * column->width;
    int overflow = 0;
    if (Py_TYPE(value) != column->type || column->next != row) {
        return 'O';
    }
    switch (column->kind) {
    case 'd':
        *(double *)cell = PyFloat_AsDouble(value);
        return 0;
    case 'q':
        *(int64_t *)cell = PyLong_AsLongLongAndOverflow(value, &overflow);
        return overflow ? 'O' : 0;
    case '?':
        *cell = value == Py_True;
        return 0;
    }
    Py_UCS4 *text = (Py_UCS4 *)cell;
    *letters = PyUnicode_GetLength(value);
    if (*letters > pass->short_text) {
        return 'O';
    }
    if (*letters * 4 > column->width) {
        return 'U';
    }
    if (!PyUnicode_AsUCS4(value, text, column->width / 4, 0)) {
        PyErr_Clear();
        return 'O';
    }
    for (Py_ssize_t i = 0; i < *letters; i++) {
        if (!text[i]) {
            return 'O'; /* NumPy's text cannot end in NUL */
        }
    }
    return 0;
}

/* One walk along a row. */
static Outcome walked(Pass *pass, PyObject *infos, Py_ssize_t row) {
    PyObject *key, *value;
    Py_ssize_t place = 0, letters = 0;
    while (PyDict_Next(infos, &place, &key, &value)) {
        size_t slot = (uint32_t)((uintptr_t)key >> 4) * 2654435761u >> (32 - SLOT_BITS);
        Column *column;
        if (pass->slots[slot].key == key) {
            column = &pass->columns[pass->slots[slot].number];
        } else if (!PyUnicode_CheckExact(key)) {
            return NOT_OURS;
        } else if (!(column = looked_up(pass, key, slot))) {
            return PyErr_Occurred() ? FAILED : new_column(pass, key, value, row);
        }
        if (column->next > row) {
            continue; /* written by an earlier walk */
        }
        if (column->kind == 'O') {
            put_object(column, row, value);
        } else {
            int kind = put_exact(pass, column, row, value, &letters);
            if (kind) {
                return renewed(pass, column, kind, letters);
            }
        }
        column->next = row + 1;
        column->filled++;
        pass->written++;
    }
    return DONE;
}

/* Read a row: walk it until nothing needs Python any more. */
static Outcome row_read(Pass *pass, PyObject *infos, Py_ssize_t row) {
    Py_ssize_t size = PyDict_Size(infos), walks = 3 * size + 1; /* a new array, a wider one, one of objects */
    Outcome outcome;
    pass->written = 0;
    Py_IncRef(infos);
    do {
        outcome = walked(pass, infos, row);
    } while (outcome == AGAIN && walks-- > 0);
    if (outcome != FAILED && (outcome == AGAIN || pass->written != size || PyDict_Size(infos) != size)) {
        outcome = NOT_OURS; /* it got or lost a key */
    }
    Py_DecRef(infos);
    return outcome;
}

static Outcome rows_read(Pass *pass) {
    Py_ssize_t before_a_look = STRETCH;
    for (Py_ssize_t row = 0; row < pass->length; row++) {
        PyObject *infos = PyList_GetItem(pass->rows, row);
        if (!infos) {
            PyErr_Clear(); /* the list became shorter */
            return NOT_OURS;
        }
        if (infos != Py_None) {
            if (!PyDict_CheckExact(infos)) {
                return NOT_OURS;
            }
            Outcome outcome = row_read(pass, infos, row);
            if (outcome != DONE) {
                return outcome;
            }
        }
        before_a_look -= pass->written + 1;
        if (before_a_look < 0) {
            before_a_look = STRETCH;
            Py_BEGIN_ALLOW_THREADS
            Py_END_ALLOW_THREADS
            if (PyErr_CheckSignals() < 0) {
                return FAILED;
            }
        }
    }
    for (Py_ssize_t i = 0; i < pass->used; i++) {
        Column *column = &pass->columns[i];
        if (!column->filled) {
            return NOT_OURS; /* its row lost it */
        }
        if (column->kind != 'O' && column->next < pass->length) {
            Outcome outcome = renewed(pass, column, 'O', 0);
            if (outcome != AGAIN) {
                return outcome;
            }
        }
    }
    return DONE;
}

static PyObject *types_of(Column *column) {
    if (column->kind != 'O') {
        note_type(column, column->type);
    }
    if (column->count > MOST_TYPES) {
        return Py_BuildValue("");
    }
    PyObject *types = PyTuple_New(column->count);
    for (int i = 0; types && i < column->count; i++) {
        Py_IncRef((PyObject *)column->types[i]);
        PyTuple_SetItem(types, i, (PyObject *)column->types[i]);
    }
    return types;
}

static PyObject *columns_of(Pass *pass) {
    PyObject *columns = PyDict_New();
    for (Py_ssize_t i = 0; columns && i < pass->used; i++) {
        Column *column = &pass->columns[i];
        PyObject *types = types_of(column), *entry = NULL;
        if (types) {
            entry = Py_BuildValue("ONn", column->array, types, column->filled);
        }
        if (!entry || PyDict_SetItem(columns, column->key, entry) < 0) {
            Py_DecRef(columns);
            columns = NULL;
        }
        Py_DecRef(entry);
    }
    return columns;
}

static PyObject *read_columns(PyObject *module, PyObject *args) {
    PyObject *rows, *renew, *columns = NULL;
    Py_ssize_t short_text;
    (void)module;
    if (!PyArg_ParseTuple(args, "O!nO", &PyList_Type, &rows, &short_text, &renew)) {
        return NULL;
    }
    Pass *pass = PyMem_Calloc(1, sizeof(Pass));
    if (!pass) {
        return PyErr_NoMemory();
    }
    pass->rows = rows;
    pass->renew = renew;
    pass->short_text = short_text;
    pass->length = PyList_Size(rows);
    pass->numbers = PyDict_New();
    Outcome outcome = pass->numbers ? rows_read(pass) : FAILED;
    if (outcome == DONE) {
        columns = columns_of(pass);
    } else if (outcome == NOT_OURS) {
        columns = Py_BuildValue("");
    }
    for (Py_ssize_t i = 0; i < pass->used; i++) {
        Column *column = &pass->columns[i];
        Py_DecRef(column->key);
        Py_DecRef(column->array);
        for (int j = 0; j < column->count && j < MOST_TYPES; j++) {
            Py_DecRef((PyObject *)column->types[j]);
        }
    }
    for (int i = 0; i < 1 << SLOT_BITS; i++) {
        Py_DecRef(pass->slots[i].key);
    }
    Py_DecRef(pass->numbers);
    PyMem_Free(pass->columns);
    PyMem_Free(pass);
    return columns;
}

static PyObject *measured_text(PyObject *module, PyObject *values) {
    Py_ssize_t longest = 0, letters = 0;
    int nul = 0;
    (void)module;
    for (Py_ssize_t i = 0; i < PyList_Size(values); i++) {
        PyObject *value = PyList_GetItem(values, i);
        Py_ssize_t length = PyUnicode_GetLength(value);
        if (length < 0) {
            return NULL;
        }
        longest = length > longest ? length : longest;
        letters += length;
        nul |= length && PyUnicode_ReadChar(value, length - 1) == 0;
    }
    return PyErr_Occurred() ? NULL : Py_BuildValue("nnO", longest, letters, nul ? Py_True : Py_False);
}

static PyObject *write_text(PyObject *module, PyObject *args) {
    PyObject *values, *address;
    Py_ssize_t width;
    (void)module;
    if (!PyArg_ParseTuple(args, "O!On", &PyList_Type, &values, &address, &width)) {
        return NULL;
    }
    Py_UCS4 *cells = PyLong_AsVoidPtr(address);
    for (Py_ssize_t i = 0; cells && i < PyList_Size(values); i++) {
        if (!PyUnicode_AsUCS4(PyList_GetItem(values, i), cells + i * width, width, 0)) {
            return NULL;
        }
    }
    return PyErr_Occurred() ? NULL : Py_BuildValue("");
}

static PyMethodDef methods[] = {
    {"read", read_columns, METH_VARARGS, "read(rows, short, renew): columns of rows, by key, or None; see _core.c"},
    {"measured", measured_text, METH_O, "measured(texts): the longest, all characters, whether one ends in NUL"},
    {"write", write_text, METH_VARARGS, "write(texts, address, width): each text into a cell of zeros, of width characters"},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef module = {PyModuleDef_HEAD_INIT, .m_name = "_core", .m_methods = methods};

PyMODINIT_FUNC PyInit__core(void) {
    return PyModuleDef_Init(&module);
}
