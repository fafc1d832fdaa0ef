import os

FEATURES = {0: "a", 1: "b", 2: "c"}


def look_up(key: int) -> str:
    return FEATURES[key]


def main() -> None:
    if os.environ["RANK"] == "1":
        look_up(3)


main()
