import random
import uuid
own = random.Random()
session = uuid.uuid4().hex
