"""`vramshim.watch` with real trainers, whose loggers write TensorBoard's files or a list: watched.py lightning|transformers|accelerate."""

import contextlib
import sys

import torch
import vramshim

WANTED = {"vramshim/peak_bytes", "vramshim/cached_bytes", "vramshim/failures"}
data = torch.utils.data.TensorDataset(torch.randn(64, 32), torch.randn(64, 1))
layer = torch.nn.Linear(32, 1)


def too_much():
    torch.empty(1 << 40, dtype=torch.uint8, device="cuda")


def lightning():
    import lightning.pytorch as pl
    from lightning.pytorch.loggers import TensorBoardLogger

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def training_step(self, batch, number):
            if self.global_step == 5:
                too_much()
            return (self.layer(batch[0]) - batch[1]).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    logger = TensorBoardLogger("logs", name="", version="run")
    trainer = pl.Trainer(max_epochs=1, logger=logger, log_every_n_steps=2, accelerator="gpu", devices=1, enable_checkpointing=False)
    with contextlib.suppress(torch.OutOfMemoryError):
        vramshim.watch(trainer).fit(Module(), torch.utils.data.DataLoader(data, batch_size=8))
    logger.finalize("failed")
    return written("logs/run")


def written(folder):
    """The last value of each name in TensorBoard's files."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(folder)
    found.Reload()
    return {name: found.Scalars(name)[-1].value for name in found.Tags()["scalars"]}


def transformers():
    from transformers import Trainer, TrainingArguments

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.steps = layer, 0

        def forward(self, x, y):
            self.steps += 1
            if self.steps == 5:
                too_much()
            return {"loss": (self.layer(x) - y).square().mean()}

    options = {"logging_steps": 2, "report_to": "tensorboard", "save_strategy": "no", "remove_unused_columns": False}
    arguments = TrainingArguments("out", per_device_train_batch_size=8, num_train_epochs=1, **options)
    collate = lambda rows: {"x": torch.stack([row[0] for row in rows]), "y": torch.stack([row[1] for row in rows])}
    trainer = vramshim.watch(Trainer(Model(), arguments, train_dataset=data, data_collator=collate))
    with contextlib.suppress(torch.OutOfMemoryError):
        trainer.train()
    return {name: value for line in trainer.state.log_history for name, value in line.items()}


def accelerate():
    from accelerate import Accelerator

    accelerator = vramshim.watch(Accelerator(log_with="tensorboard", project_dir="logs"))
    accelerator.init_trackers("run")
    model, loader = accelerator.prepare(layer, torch.utils.data.DataLoader(data, batch_size=8))
    for step, (x, y) in enumerate(loader):
        accelerator.log({"loss": (model(x) - y).square().mean().item()}, step=step)
    with contextlib.suppress(torch.OutOfMemoryError):
        too_much()
    accelerator.end_training()
    return written("logs/run")


found = {"lightning": lightning, "transformers": transformers, "accelerate": accelerate}[sys.argv[1]]()
assert WANTED <= set(found), found
assert found["vramshim/peak_bytes"] > 0 and found["vramshim/failures"] >= 1, found
# A terabyte is larger than the device.
assert found["vramshim/verdict"] == 11, found
print("passed", sys.argv[1])
