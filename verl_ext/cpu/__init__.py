"""Training by verl's own command line on a CPU: what verl needs where there is no GPU, and runs that are put together.

`python -m verl.trainer.main_ppo` stays as verl has it: the trainers, the actor's workers, the FSDP2 engine, the weight
sync, the agent loop, the reward loop, dumps and checkpoints are verl's. This folder adds a platform, a model server and
three small patches, by verl's own registries. It is no part of the plugin: `verl_ext.autoload` loads nothing of it.

- What verl runs on: `platform`, `patches`, `server`; `order`, for runs that are the same bit for bit.
- What is trained: `model`, `task`; `recorded`, which keeps what reward functions return.
- A run: `run` starts verl's command line, `outcome` reads what it left behind.
- What a person sees: `train`, `dry_run`, `curves`.
"""
