// BucketLayout: which parameters' gradients travel together, and in which order: what c10d::Reducer
// finds out in its first step. A resumed run that is to have the same bits must start with the same
// layout, since Gloo's order of summation depends on an element's place in its buffer (three and
// more ranks). Pure values; text for Stateful. Any thread.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace ddprun {

// Buckets in the order in which they are reduced, of indices into the list of parameters. Empty: not
// found out yet.
using BucketLayout = std::vector<std::vector<std::size_t>>;

// {"buckets":[[3,2],[1,0]]}
std::string text_of(const BucketLayout& layout);

// Throws UsageError unless `text` is a layout of exactly `parameter_count` parameters (or none).
BucketLayout bucket_layout_from(const std::string& text, std::size_t parameter_count);

}  // namespace ddprun
