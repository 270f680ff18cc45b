"""`vramshim.watch` with real trainers, whose loggers write TensorBoard's files or a list: watched.py lightning|transformers|accelerate."""

import sys

import torch
import vramshim

WANTED = {"vramshim/peak_bytes", "vramshim/cached_bytes", "vramshim/failures"}
data = torch.utils.data.TensorDataset(torch.randn(64, 32), torch.randn(64, 1))
layer = torch.nn.Linear(32, 1)


def lightning():
    import lightning.pytorch as pl
    from lightning.pytorch.loggers import TensorBoardLogger

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def training_step(self, batch, number):
            if self.global_step == 5:
                torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
            return (self.layer(batch[0]) - batch[1]).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    logger = TensorBoardLogger("logs", name="", version="run")
    options = dict(max_epochs=1, logger=logger, log_every_n_steps=2, enable_progress_bar=False, enable_checkpointing=False)
    trainer = pl.Trainer(accelerator="gpu", devices=1, enable_model_summary=False, **options)
    try:
        vramshim.watch(trainer).fit(Module(), torch.utils.data.DataLoader(data, batch_size=8))
    except torch.OutOfMemoryError:
        pass
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
                torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
            loss = (self.layer(x) - y).square().mean()
            return {"loss": loss}

    arguments = TrainingArguments(
        "out", per_device_train_batch_size=8, num_train_epochs=1, logging_steps=2, report_to="tensorboard",
        save_strategy="no", disable_tqdm=True, remove_unused_columns=False, logging_nan_inf_filter=False,
    )
    collate = lambda rows: {"x": torch.stack([row[0] for row in rows]), "y": torch.stack([row[1] for row in rows])}
    trainer = vramshim.watch(Trainer(Model(), arguments, train_dataset=data, data_collator=collate))
    try:
        trainer.train()
    except torch.OutOfMemoryError:
        pass
    return {name: value for line in trainer.state.log_history for name, value in line.items()}


def accelerate():
    from accelerate import Accelerator

    accelerator = vramshim.watch(Accelerator(log_with="tensorboard", project_dir="logs"))
    accelerator.init_trackers("run")
    model, loader = accelerator.prepare(layer, torch.utils.data.DataLoader(data, batch_size=8))
    for step, (x, y) in enumerate(loader):
        accelerator.log({"loss": (model(x) - y).square().mean().item()}, step=step)
    try:
        torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
    except torch.OutOfMemoryError:
        pass
    accelerator.end_training()
    return written("logs/run")


found = {"lightning": lightning, "transformers": transformers, "accelerate": accelerate}[sys.argv[1]]()
assert WANTED <= set(found), found
assert found["vramshim/peak_bytes"] > 0 and found["vramshim/failures"] >= 1, found
# A terabyte is larger than the device.
assert found["vramshim/verdict"] == 11, found
print("passed", sys.argv[1])
