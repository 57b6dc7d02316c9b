#include <algorithm>
#include <utility>

#include "ddprun/collectives.h"
#include "ddprun/serialize.h"

namespace ddprun {
namespace {

using Tensor = torch::Tensor;
using Tensors = std::vector<torch::Tensor>;

// The bytes of `text`, padded to `size`.
Tensor padded(const std::string& text, std::int64_t size) {
  if (std::cmp_greater(text.size(), size)) {  // the sizes are those that a worker before had told
    throw Failure(
        ErrorCode::kProtocol,
        "this process was to take a rank's place and sends more than that one did: is its "
        "program the same each time it runs?");
  }
  Tensor bytes = torch::zeros({size}, torch::kUInt8);
  std::copy(text.begin(), text.end(), reinterpret_cast<char*>(bytes.mutable_data_ptr()));
  return bytes;
}

std::vector<std::string> texts_of(const Tensors& all, const std::vector<std::int64_t>& sizes) {
  std::vector<std::string> texts;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    texts.emplace_back(static_cast<const char*>(all[rank].const_data_ptr()),
                       static_cast<std::size_t>(sizes[rank]));
  }
  return texts;
}

}  // namespace

std::string Group::broadcast(std::string text, int src) {
  text.resize(static_cast<std::size_t>(broadcast(static_cast<std::int64_t>(text.size()), src)));
  broadcast(view_of(text.data(), text.size()), src);
  return text;
}

std::vector<std::string> Group::all_gather(const std::string& text) {
  const auto sizes = all_gather(static_cast<std::int64_t>(text.size()));
  return texts_of(all_gather(padded(text, std::ranges::max(sizes))), sizes);
}

std::vector<std::string> Group::gather(const std::string& text, int dst) {
  check_rank("gather", dst);
  const auto sizes = all_gather(static_cast<std::int64_t>(text.size()));
  return texts_of(gather(padded(text, std::ranges::max(sizes)), dst), sizes);
}

void Codec<torch::Tensor>::write(ByteWriter& writer, const torch::Tensor& tensor) {
  Codec<bool>::write(writer, tensor.defined());
  if (!tensor.defined()) return;
  const Tensor strided = tensor.layout() == torch::kStrided ? tensor : tensor.to_dense();
  const Tensor dense_one = strided.detach().cpu().resolve_conj().resolve_neg().contiguous();
  Codec<std::int8_t>::write(writer, static_cast<std::int8_t>(dense_one.scalar_type()));
  Codec<std::vector<std::int64_t>>::write(writer, dense_one.sizes().vec());
  writer.count(dense_one.nbytes());
  writer.bytes(dense_one.const_data_ptr(), dense_one.nbytes());
}

torch::Tensor Codec<torch::Tensor>::read(ByteReader& reader) {
  if (!Codec<bool>::read(reader)) return {};
  const auto type = Codec<std::int8_t>::read(reader);
  const auto sizes = Codec<std::vector<std::int64_t>>::read(reader);
  const std::string_view bytes = reader.view(reader.count());
  constexpr auto kTypes = static_cast<std::int8_t>(torch::ScalarType::NumOptions);
  const bool is_known = type >= 0 && type < kTypes &&
                        static_cast<torch::ScalarType>(type) != torch::ScalarType::Undefined;
  const bool is_empty = std::ranges::find(sizes, 0) != sizes.end();
  std::uint64_t needed = is_known ? c10::elementSize(static_cast<torch::ScalarType>(type)) : 0;
  bool fits = is_known;
  for (const std::int64_t size : sizes) {
    fits = fits && size >= 0 &&
           (is_empty || !__builtin_mul_overflow(needed, static_cast<std::uint64_t>(size), &needed));
  }
  if (!fits || (is_empty ? 0 : needed) != bytes.size()) {
    throw Failure(ErrorCode::kProtocol, "the bytes of a tensor do not fit its sizes");
  }
  Tensor tensor = torch::empty(sizes, static_cast<torch::ScalarType>(type));
  if (!bytes.empty())
    std::copy(bytes.begin(), bytes.end(), static_cast<char*>(tensor.mutable_data_ptr()));
  return tensor;
}

}  // namespace ddprun
