#include "ddprun/datasets.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "ddprun/error.h"
#include "ddprun/npy.h"

namespace ddprun {
namespace {

template <typename T>
T value_or_usage_error(Result<T> result) {
  if (!result) throw UsageError(std::move(result.error()));
  return std::move(*result);
}

torch::Tensor index_tensor(const std::vector<std::size_t>& indices) {
  static_assert(sizeof(std::size_t) == sizeof(std::int64_t));
  // A view of the vector; index_select only reads it.
  return torch::from_blob(const_cast<std::size_t*>(indices.data()),
                          {static_cast<std::int64_t>(indices.size())}, torch::kInt64);
}

torch::Tensor per_channel(const std::vector<double>& values, std::int64_t channels,
                          const char* name) {
  if (values.empty()) return {};
  if (static_cast<std::int64_t>(values.size()) != channels) {
    throw UsageError("images of " + std::to_string(channels) + " channels need as many values of " +
                     name + ", there are " + std::to_string(values.size()));
  }
  return torch::tensor(values, torch::kFloat32).view({-1, 1, 1});
}

TensorDataset bytes_of(const LabelledImages& images) {
  const std::int64_t count = images.count();
  const std::vector<std::int64_t> shape{count, images.channels, images.height, images.width};
  if (static_cast<std::int64_t>(images.pixels.size()) !=
      count * images.channels * images.height * images.width) {
    throw UsageError("there are " + std::to_string(images.pixels.size()) + " bytes of pixels for " +
                     std::to_string(count) + " images");
  }
  const auto view = [](const std::vector<std::uint8_t>& bytes, c10::IntArrayRef sizes) {
    return torch::from_blob(const_cast<std::uint8_t*>(bytes.data()), sizes, torch::kUInt8);
  };
  return TensorDataset(view(images.pixels, shape).clone(),
                       view(images.labels, {count}).to(torch::kInt64));
}

struct TypePair {
  char kind;
  int size;
  torch::ScalarType type;
};
constexpr TypePair kTypes[] = {
    {'b', 1, torch::kBool},         {'i', 1, torch::kInt8},           {'i', 2, torch::kInt16},
    {'i', 4, torch::kInt32},        {'i', 8, torch::kInt64},          {'u', 1, torch::kUInt8},
    {'u', 2, torch::kUInt16},       {'u', 4, torch::kUInt32},         {'u', 8, torch::kUInt64},
    {'f', 2, torch::kFloat16},      {'f', 4, torch::kFloat32},        {'f', 8, torch::kFloat64},
    {'c', 8, torch::kComplexFloat}, {'c', 16, torch::kComplexDouble},
};

bool is_integer(double value) {
  return std::floor(value) == value && std::abs(value) <= 9007199254740992.0;  // 2^53
}

// The target of a CSV file's labels, and the classes if they are names.
std::pair<torch::Tensor, std::vector<std::string>> target_of(const std::vector<std::string>& labels,
                                                             const std::string& path,
                                                             const CsvOptions& options) {
  if (labels.empty()) return {};
  const auto refuse = [&path](std::size_t row, const std::string& what) {
    throw UsageError(path + ": the label of row " + std::to_string(row + 1) + " " + what);
  };
  std::vector<double> numbers;
  std::optional<std::size_t> first_name;
  for (std::size_t row = 0; row < labels.size(); ++row) {
    const bool is_empty = labels[row].empty();
    if (is_empty && !options.missing) {
      refuse(row, "is empty: say what that means with the option `missing`");
    }
    const auto number = is_empty ? options.missing : number_from(labels[row]);
    if (number && !options.labels_are_names) {
      numbers.push_back(*number);
    } else if (!first_name) {
      first_name = row;
    }
  }
  if (!numbers.empty() && first_name) {
    refuse(*first_name, "is '" + labels[*first_name] +
                            "', and others are numbers: remove it, or set labels_are_names if all "
                            "of them are the names of classes");
  }
  if (!first_name) {
    const bool are_integers = std::all_of(numbers.begin(), numbers.end(), is_integer);
    return {
        torch::tensor(numbers, torch::kFloat64).to(are_integers ? torch::kInt64 : torch::kFloat32),
        {}};
  }
  std::map<std::string, std::int64_t> number_of;
  for (const std::string& label : labels) number_of[label] = 0;
  std::vector<std::string> classes;
  for (auto& [name, number] : number_of) {
    number = static_cast<std::int64_t>(classes.size());
    classes.push_back(name);
  }
  std::vector<std::int64_t> target;
  for (const std::string& label : labels) target.push_back(number_of[label]);
  return {torch::tensor(target), std::move(classes)};
}

}  // namespace

TensorDataset::TensorDataset(torch::Tensor data, torch::Tensor target)
    : data_(std::move(data)), target_(std::move(target)) {
  if (!data_.defined() || data_.dim() == 0) {
    throw UsageError("a dataset of tensors needs a first dimension, the samples");
  }
  if (target_.defined() && (target_.dim() == 0 || target_.size(0) != data_.size(0))) {
    throw UsageError("there are " + std::to_string(data_.size(0)) + " samples of data and " +
                     (target_.dim() == 0 ? "one" : std::to_string(target_.size(0))) +
                     " of targets");
  }
}

torch::data::Example<> TensorDataset::get_batch(const std::vector<std::size_t>& indices) const {
  const torch::Tensor chosen = index_tensor(indices);
  const auto rows = [&chosen](const torch::Tensor& tensor) {
    return tensor.index_select(0, tensor.is_cpu() ? chosen : chosen.to(tensor.device()));
  };
  return {rows(data_), target_.defined() ? rows(target_) : torch::Tensor()};
}

ImageDataset::ImageDataset(LabelledImages images, std::vector<double> mean, std::vector<double> std)
    : ImageDataset(bytes_of(images), per_channel(mean, images.channels, "mean"),
                   per_channel(std, images.channels, "std")) {}

ImageDataset::ImageDataset(Result<LabelledImages> images, std::vector<double> mean,
                           std::vector<double> std)
    : ImageDataset(value_or_usage_error(std::move(images)), std::move(mean), std::move(std)) {}

ImageDataset::ImageDataset(TensorDataset bytes, torch::Tensor mean, torch::Tensor std)
    : bytes_(std::move(bytes)), mean_(std::move(mean)), std_(std::move(std)) {}

torch::data::Example<> ImageDataset::get_batch(const std::vector<std::size_t>& indices) const {
  auto batch = bytes_.get_batch(indices);
  batch.data = batch.data.to(torch::kFloat32).div_(255);
  if (mean_.defined()) batch.data.sub_(mean_);
  if (std_.defined()) batch.data.div_(std_);
  return batch;
}

ImageDataset ImageDataset::first(std::int64_t count) const {
  const std::int64_t kept = std::min(count, size());
  return {TensorDataset(pixels().narrow(0, 0, kept), labels().narrow(0, 0, kept)), mean_, std_};
}

CsvDataset csv_dataset(const std::string& path, const CsvOptions& options) {
  CsvTable table = value_or_usage_error(read_csv(path, options));
  auto [target, classes] = target_of(table.labels, path, options);
  CsvDataset dataset(torch::tensor(table.values, torch::kFloat64)
                         .to(torch::kFloat32)
                         .view({table.rows, static_cast<std::int64_t>(table.columns.size())}),
                     std::move(target));
  dataset.columns = std::move(table.columns);
  dataset.classes = std::move(classes);
  return dataset;
}

torch::Tensor load_npy(const std::string& path) {
  const NpyArray array = value_or_usage_error(read_npy(path));
  const auto type = std::find_if(std::begin(kTypes), std::end(kTypes), [&array](const TypePair& t) {
    return t.kind == array.kind && t.size == array.element_size;
  });
  std::vector<std::int64_t> shape = array.shape;
  if (array.is_fortran_order) std::reverse(shape.begin(), shape.end());
  torch::Tensor tensor = torch::empty(shape, type->type);
  if (!array.bytes.empty()) {
    std::memcpy(tensor.mutable_data_ptr(), array.bytes.data(), array.bytes.size());
  }
  if (!array.is_fortran_order) return tensor;
  std::vector<std::int64_t> backwards(shape.size());
  std::iota(backwards.rbegin(), backwards.rend(), 0);
  return tensor.permute(backwards).contiguous();
}

void save_npy(const std::string& path, const torch::Tensor& tensor) {
  const torch::Tensor plain = tensor.detach().cpu().contiguous().resolve_conj().resolve_neg();
  const auto type = std::find_if(std::begin(kTypes), std::end(kTypes), [&plain](const TypePair& t) {
    return t.type == plain.scalar_type();
  });
  if (type == std::end(kTypes)) {
    throw UsageError("a tensor of " + std::string(c10::toString(plain.scalar_type())) +
                     " cannot be written to " + path +
                     ": .npy has no such type; convert it with .to(torch::kFloat32)");
  }
  NpyArray array;
  array.kind = type->kind;
  array.element_size = type->size;
  array.shape = plain.sizes().vec();
  array.bytes.resize(plain.nbytes());
  if (!array.bytes.empty()) {
    std::memcpy(array.bytes.data(), plain.const_data_ptr(), array.bytes.size());
  }
  if (auto written = write_npy(path, array); !written) throw UsageError(std::move(written.error()));
}

}  // namespace ddprun
