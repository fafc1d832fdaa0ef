import os
import signal
import time

from torch.utils.data import DataLoader, Dataset


class Images(Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> int:
        if index == 9:
            os.kill(os.getpid(), signal.SIGKILL)
        return index


def train() -> None:
    for _ in DataLoader(Images(), batch_size=4, num_workers=2, collate_fn=list):
        pass


if os.environ["RANK"] == "1":
    train()
time.sleep(1000)
