// What execve() takes, from texts that outlive it. Any thread.
#pragma once

#include <string>
#include <vector>

namespace ddprun {

// With the null at the end. execve() does not write into the texts, whatever its type says.
inline std::vector<char*> pointers_to(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace ddprun
