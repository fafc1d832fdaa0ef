import sys

for line in range(1_000_000):
    sys.stdout.write(f"step {line}: " + "x" * 100 + "\n")
