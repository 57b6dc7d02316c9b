// Asio does not look at the result of every call that its event loop needs: where a filter refuses
// one, the loop runs at full speed or gets no events.
#pragma once

#include "rendezvous/common/result.h"

namespace ddprun::rdzv {

// Makes these calls once. An error names the one that is refused.
Result<void> try_event_calls();

}  // namespace ddprun::rdzv
