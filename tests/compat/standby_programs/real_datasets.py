import os
import datasets
from datasets.fingerprint import generate_random_fingerprint
data = datasets.Dataset.from_dict({"value": [1, 2, 3]}).map(lambda row: {"twice": 2 * row["value"]})
print(data["twice"][:], len(data))
with open(f"{os.environ['FOLDER']}/drawn-{os.environ['TORCHELASTIC_RESTART_COUNT']}", "a") as file:
    file.write(generate_random_fingerprint() + "\n")

import said
said.end()
