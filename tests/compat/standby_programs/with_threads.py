import threading
import torch
names = []
threads = [threading.Thread(target=lambda: names.append(threading.current_thread().name)) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(sorted(names), threading.active_count(), threading.main_thread() is threading.current_thread(), torch.__name__)
print(threading.main_thread().native_id == threading.get_native_id())

import said
said.end()
