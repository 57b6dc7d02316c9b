// Which parameters got no gradient, from the text of c10d's error: its reducer says so in no other way. A LibTorch with
// another text loses only the names: the error is then c10d's own. Pure; any thread.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace ddprun {

// The indices after "did not receive grad for rank N:". Empty if the text differs, or if an index is not below
// `parameter_count`.
std::vector<std::size_t> indices_without_gradient(const std::string& message,
                                                  std::size_t parameter_count);

}  // namespace ddprun
