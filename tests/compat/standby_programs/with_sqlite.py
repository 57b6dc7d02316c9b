import sqlite3
import torch
with sqlite3.connect(":memory:") as database:
    database.execute("create table numbers (value)")
    database.executemany("insert into numbers values (?)", [(each,) for each in range(5)])
    print(database.execute("select sum(value) from numbers").fetchall(), torch.__name__)

import said
said.end()
