import asyncio
import torch


async def work():
    await asyncio.sleep(0.01)
    process = await asyncio.create_subprocess_exec("true")
    return await process.wait(), torch.relu(-1)

print(asyncio.run(work()), type(asyncio.get_event_loop_policy()).__name__)

import said
said.end()
