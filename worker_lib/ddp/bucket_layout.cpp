#include "worker_lib/ddp/bucket_layout.h"

#include <boost/json.hpp>

#include "ddprun/error.h"

namespace ddprun {
namespace {

[[noreturn]] void refuse(const std::string& why) {
  throw UsageError("this is not the state of a DistributedDataParallel of this model: " + why +
                   "; load the state that was saved with the same model");
}

}  // namespace

std::string text_of(const BucketLayout& layout) {
  boost::json::array buckets;
  for (const auto& bucket : layout)
    buckets.emplace_back(boost::json::array(bucket.begin(), bucket.end()));
  return boost::json::serialize(boost::json::object{{"buckets", std::move(buckets)}});
}

BucketLayout bucket_layout_from(const std::string& text, std::size_t parameter_count) {
  BucketLayout layout;
  try {
    layout = boost::json::value_to<BucketLayout>(boost::json::parse(text).at("buckets"));
  } catch (const std::exception&) {
    refuse("not a JSON object with lists of parameters in \"buckets\"");
  }
  if (layout.empty()) return layout;

  std::vector<bool> is_placed(parameter_count, false);
  std::size_t placed = 0;
  for (const auto& bucket : layout) {
    if (bucket.empty()) refuse("it has a bucket without parameters");
    for (const std::size_t index : bucket) {
      if (index >= parameter_count) {
        refuse("it places parameter " + std::to_string(index) + ", and the model has " +
               std::to_string(parameter_count) + " that require a gradient");
      }
      if (is_placed[index]) refuse("it places parameter " + std::to_string(index) + " twice");
      is_placed[index] = true;
      ++placed;
    }
  }
  if (placed != parameter_count) {
    refuse("it places " + std::to_string(placed) + " parameters, and the model has " +
           std::to_string(parameter_count) + " that require a gradient");
  }
  return layout;
}

}  // namespace ddprun
