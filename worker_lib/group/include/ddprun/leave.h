// The end of a Context, for programs that do without run(), which calls these.
#pragma once

#include "ddprun/context.h"

namespace ddprun {

// When all went well. Rank 0 keeps the store open until everybody is done with it.
void leave(Context& context);

// After a failure, in a handler: says to the others why this rank ends, and throws what is being
// handled on; an error of a connection as a Failure that says which rank is missing (also when it
// comes out of backward() or another place that knows nothing of this library). Without it the others
// only see that this rank has gone.
[[noreturn]] void leave_failed(Context& context);

}  // namespace ddprun
