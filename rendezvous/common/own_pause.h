// How a process notices that it was stopped (SIGSTOP, a suspended machine) or got no processor: it looks later than it was to
// look. Otherwise its own pause would look like the silence of others, whose messages it has not read yet. Pure.
#pragma once

namespace ddprun {

// How long after `due` it is now; zero if a process that runs may be that late (`tolerance`), too.
template <typename Time>
constexpr typename Time::duration own_pause(Time due, Time now, typename Time::duration tolerance) {
  return now - due > tolerance ? now - due : Time::duration::zero();
}

}  // namespace ddprun
