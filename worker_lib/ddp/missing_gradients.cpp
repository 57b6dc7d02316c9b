#include "worker_lib/ddp/missing_gradients.h"

#include <algorithm>
#include <sstream>

namespace ddprun {

std::vector<std::size_t> indices_without_gradient(const std::string& message,
                                                  std::size_t parameter_count) {
  auto at = message.rfind("did not receive grad for rank ");
  if (at != std::string::npos) at = message.find(':', at);
  if (at == std::string::npos) return {};
  std::vector<std::size_t> indices;
  std::istringstream numbers(message.substr(at + 1));
  for (std::size_t index = 0; numbers >> index;) indices.push_back(index);
  const bool are_parameters =
      std::ranges::all_of(indices, [&](std::size_t index) { return index < parameter_count; });
  return are_parameters ? indices : std::vector<std::size_t>();
}

}  // namespace ddprun
