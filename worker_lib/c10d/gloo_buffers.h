// The buffers of Gloo's calls under way. When a connection ends, Gloo (transport/tcp/pair.cc, signalException) tells
// those buffers that have not begun to send or to receive, and forgets those whose message is half there or half sent:
// who waits for one of these waits until the time limit of the call, 30 minutes. So the constructor and the destructor
// of UnboundBuffer are taken from LibTorch here, by their symbols, note the buffer, and go on to LibTorch's own.
// Linked into a program, or loaded by it before LibTorch for all to see. Needs none of Gloo's declarations, of which
// those of a distribution have other layouts than LibTorch's copy. Any thread.
#pragma once

#include <string>

namespace ddprun::detail {

// Whether they are noted: not if LibTorch's symbols come before these.
bool are_gloo_buffers_known();
// Who waits for one of them, in whatever group of this process, has this failure. Call it when the connections
// are closed: buffers that are made afterwards hear of that from Gloo.
void fail_gloo_buffers(const std::string& why);

}  // namespace ddprun::detail
