// Ends all calls over Gloo of this process, and the making of its groups. Gloo cannot be aborted, but a connection of it
// ("pair") that has failed tells who waits for it: so each pair is failed, as Gloo does where a call takes too long
// (signalExceptionExternal in transport/tcp/pair.cc). Of the buffers of calls it tells those that have not begun to send
// or to receive and forgets those whose message is half there or half sent: who waits for one of these would wait for
// 30 minutes. So these are told here.
//
// The constructors and destructors of pairs and buffers are taken from LibTorch for it, by their symbols: they note the
// object, and go on to LibTorch's own. So is what Gloo's thread calls when a pair is connected or fails. This is a part of
// ddprun::standby, which a program links if it asks for it (in other programs the weak functions below are null), and of
// the library that Python programs load before LibTorch. It needs none of Gloo's declarations, of which those of a
// distribution have other layouts than LibTorch's copy. Any thread.
#pragma once

#include <cstdint>
#include <string>

namespace ddprun::detail {

// Whether pairs and buffers are noted: not if LibTorch's symbols come before these, or are others.
[[gnu::weak]] bool can_interrupt_gloo();
// Calls that wait fail with `why`, and so does each later call of these groups.
[[gnu::weak]] void interrupt_gloo(const std::string& why);
// Grows with every call over Gloo that this process takes part in, by as many buffers as it needs, when the
// call's turn comes: not yet with one that still waits behind others.
const std::uint64_t* gloo_calls();
// Grows with every connection over Gloo of this process that fails: its peer is gone, a call took too long, or
// interrupt_gloo() ended it.
const std::uint64_t* gloo_failures();

}  // namespace ddprun::detail
