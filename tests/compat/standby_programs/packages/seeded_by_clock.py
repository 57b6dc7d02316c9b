import random
import time
own = random.Random(time.time_ns())
