// What distinguishes two sources, line by line, as diff says it.
#pragma once

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

namespace ddprun::test {

// A source's lines without the comment at its head.
inline std::vector<std::string> code_of(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) {
    if (!lines.empty() || !line.starts_with("//")) lines.push_back(line);
  }
  return lines;
}

// "-old" and "+new" lines that make `after` of `before`, in order, removals first: by the longest
// common subsequence.
inline std::vector<std::string> difference(const std::vector<std::string>& before,
                                           const std::vector<std::string>& after) {
  const std::size_t n = before.size(), m = after.size();
  std::vector<std::vector<int>> common(n + 1, std::vector<int>(m + 1, 0));
  for (std::size_t i = n; i-- > 0;) {
    for (std::size_t j = m; j-- > 0;) {
      common[i][j] = before[i] == after[j] ? common[i + 1][j + 1] + 1
                                           : std::max(common[i + 1][j], common[i][j + 1]);
    }
  }
  std::vector<std::string> lines, added;
  std::size_t i = 0, j = 0;
  while (i < n || j < m) {
    if (i < n && j < m && before[i] == after[j]) {
      lines.insert(lines.end(), added.begin(), added.end());
      added.clear();
      ++i, ++j;
    } else if (i < n && (j == m || common[i + 1][j] >= common[i][j + 1])) {
      lines.push_back("-" + before[i++]);
    } else {
      added.push_back("+" + after[j++]);
    }
  }
  lines.insert(lines.end(), added.begin(), added.end());
  return lines;
}

}  // namespace ddprun::test
