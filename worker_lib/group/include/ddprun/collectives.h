// Group: what a set of ranks does together: collectives on tensors, on plain values and strings,
// and on any serialisable value (serialize.h). Context (context.h) is the group of all ranks;
// new_group() makes smaller ones, which must go before it. Everything is defined for a group of
// one. One thread at a time, as for all of c10d.
//
//   context.all_reduce(gradients);                                  // a tensor, in place
//   double loss = context.all_reduce(my_loss) / context.size();     // a number
//   auto names = context.all_gather(host_name);                     // one string per rank
//   auto pending = context.all_gather_async(features);              // meanwhile ...
//   for (const torch::Tensor& part : pending.wait()) use(part);
//
// Every rank of the group must make the same calls in the same order, with tensors of the same type
// and, where not said otherwise, shape. Otherwise the others wait for the one that is missing until it
// ends or the time limit (ContextOptions::timeout) is over.
//
// Tensors: on the CPU (shm or Gloo) or on the rank's GPU (NCCL; with Gloo as the only backend
// through Gloo). A tensor that is written must be dense; one that is only read may have any strides.
// all_reduce alone takes sparse tensors (with coordinates), and leaves the sum on every rank. No
// gradient flows through a collective. Over NCCL "done" means, as in PyTorch, that the current
// stream waits: the host goes on. `src` and `dst` are ranks of this group.
//
// Throws Failure: kInvalidArgument for arguments that can never work (at once, on this rank alone);
// else a peer failed, left or did not come in time, and the message says which and what it does
// instead, as far as can be found out within a second. After that the group is of no further use.
// Tensors that differ between ranks where they must not are undefined behaviour, as in PyTorch, but
// over shm, which compares all calls itself; ContextOptions::check_collectives (or
// TORCH_DISTRIBUTED_DEBUG=DETAIL) compares every call first.
//
// A collective of a plain value returns its result and leaves the argument as it was, so the result must be used
// ([[nodiscard]]); one of a tensor works in place where torch.distributed's does.
//
// Names and parameters are those of torch.distributed (distributed_c10d.py); unlike there, all_gather and
// all_to_all take parts of different lengths, Gloo averages, and new_group keeps the order of its list.
#pragma once

#include <torch/types.h>

#include <bit>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "ddprun/error.h"
#include "ddprun/serialize.h"

namespace ddprun {

using ReduceOp = c10d::ReduceOp;

namespace detail {

struct ContextAccess;
struct Membership;

// A started operation and what must live until its end.
class Operation {
 public:
  Operation() = default;  // one that is over
  using Begin = std::function<c10::intrusive_ptr<c10d::Work>()>;
  // `kept` begins with the tensor that says what the call is about, if there is one. `limit`: what
  // wait() gives it, where that has none of its own.
  Operation(std::shared_ptr<Membership> membership, const char* name,
            std::vector<torch::Tensor> kept, const Begin& begin, std::function<void()> finish,
            std::chrono::milliseconds limit = std::chrono::milliseconds::zero(),
            bool is_blocking = false);

  bool is_done() const { return !work_ || work_->isCompleted(); }
  void wait();

 private:
  void enter();
  void end();
  void fail_if_broken();
  [[noreturn]] void fail();

  std::shared_ptr<Membership> membership_;
  const char* name_ = "";
  std::int64_t number_ = 0;
  std::vector<torch::Tensor> kept_;
  std::chrono::milliseconds limit_{0};
  bool is_blocking_ = false;  // begin() may wait, too
  std::function<void()> finish_;
  c10::intrusive_ptr<c10d::Work> work_;
};

}  // namespace detail

// A collective under way. wait() gives its result, or throws; a second wait() gives the same at
// once. The tensors live at least as long as this does; what is to be written must not be touched,
// and what is read not be changed, before wait(). Dropped without wait(): the operation may or may
// not take place, and nobody hears of its failure.
template <typename Result = void>
class [[nodiscard("a collective that is under way ends in wait()")]] Work {
  using Kept = std::conditional_t<std::is_void_v<Result>, std::monostate, Result>;

 public:
  Work(detail::Operation operation, Kept result = {})
      : operation_(std::move(operation)), result_(std::move(result)) {}

  bool is_done() const { return operation_.is_done(); }
  Result wait() {
    operation_.wait();
    if constexpr (!std::is_void_v<Result>) return result_;
  }

 private:
  detail::Operation operation_;
  Kept result_;
};

// A number that all_reduce() of plain values takes; for bool see all_of() and any_of().
template <typename T>
concept Number = (std::is_integral_v<T> || std::is_same_v<T, float> ||
                  std::is_same_v<T, double>)&&!std::is_same_v<T, bool>;
template <typename T>
concept NumberOrBool = Number<T> || std::is_same_v<T, bool>;

class Group;

namespace detail {

// What a function returned, or threw.
template <typename Value>
struct Outcome {
  template <typename Function>
  void of(Function& f) {
    try {
      if constexpr (std::is_void_v<Value>) {
        f();
      } else {
        value.emplace(f());
      }
    } catch (...) {
      thrown = std::current_exception();
    }
  }

  std::optional<std::conditional_t<std::is_void_v<Value>, bool, Value>> value;
  std::exception_ptr thrown;
};

// Throws on every rank when one of them comes with an error: its own where `mine` is one, else a
// Failure with the text of the first rank that has one. Collective.
void throw_together(Group& group, const std::exception_ptr& mine, const std::string& doing);

}  // namespace detail

class Group {
  // For this class alone: users leave it out. Blocking calls are, as in Python, queued on the GPU's current
  // stream itself, which need not wait for NCCL's own then (asyncOp).
  enum class Mode { kBlocking, kAsync };

 public:
  using Tensor = torch::Tensor;
  using Tensors = std::vector<torch::Tensor>;

  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  ~Group();

  int rank() const;  // within this group
  int size() const;
  // The number that rank `rank` of this group has in the job.
  int global_rank(int rank) const;
  // Where this rank's tensors live as a rule.
  torch::Device device() const;

  // The group may be replaced one day (survivors of a failure form a new one): ask for it, keep no
  // copy.
  const c10::intrusive_ptr<c10d::ProcessGroup>& process_group() const;

  // The ranks of this group that `ranks` names become a group of their own, with the same backends and
  // time limits: rank i of it is ranks[i], so {2, 0} makes this group's rank 2 its rank 0. Collective over
  // all ranks of this group, with the same list everywhere; nullptr for a rank that is not in it.
  [[nodiscard]] std::unique_ptr<Group> new_group(const std::vector<int>& ranks);

  // --- Tensors. Each returns when it is done here; the *_async twin returns at once.

  // `tensor` becomes that of rank `src`.
  void broadcast(Tensor tensor, int src = 0) {
    broadcast_async(std::move(tensor), src, Mode::kBlocking).wait();
  }
  Work<> broadcast_async(Tensor tensor, int src = 0, Mode mode = Mode::kAsync);

  // `tensor` becomes the sum (or what `op` says) over all ranks.
  void all_reduce(Tensor tensor, ReduceOp op = ReduceOp::SUM) {
    all_reduce_async(std::move(tensor), std::move(op), Mode::kBlocking).wait();
  }
  Work<> all_reduce_async(Tensor tensor, ReduceOp op = ReduceOp::SUM, Mode mode = Mode::kAsync);

  // The same on rank `dst` alone; what the others' tensors hold afterwards is not defined.
  void reduce(Tensor tensor, int dst = 0, ReduceOp op = ReduceOp::SUM) {
    reduce_async(std::move(tensor), dst, std::move(op), Mode::kBlocking).wait();
  }
  Work<> reduce_async(Tensor tensor, int dst = 0, ReduceOp op = ReduceOp::SUM,
                      Mode mode = Mode::kAsync);

  // On rank `dst` every rank's tensor, in the order of ranks; elsewhere nothing. Equal shapes.
  [[nodiscard]] Tensors gather(const Tensor& tensor, int dst = 0) {
    return gather_async(tensor, dst, Mode::kBlocking).wait();
  }
  Work<Tensors> gather_async(const Tensor& tensor, int dst = 0, Mode mode = Mode::kAsync);

  // Every rank's tensor, everywhere. Equal shapes.
  [[nodiscard]] Tensors all_gather(const Tensor& tensor) {
    return all_gather_async(tensor, Mode::kBlocking).wait();
  }
  Work<Tensors> all_gather_async(const Tensor& tensor, Mode mode = Mode::kAsync);

  // The same with first dimensions that differ, zero included; the other dimensions and the type
  // must agree, else all ranks throw and the message names one that differs. Two collectives.
  [[nodiscard]] Tensors all_gather_uneven(const Tensor& tensor);

  // `into` becomes the part that rank `src` has at this rank's place; the others leave `parts` empty.
  void scatter(Tensor into, const Tensors& parts = {}, int src = 0) {
    scatter_async(std::move(into), parts, src, Mode::kBlocking).wait();
  }
  Work<> scatter_async(Tensor into, const Tensors& parts = {}, int src = 0,
                       Mode mode = Mode::kAsync);

  // Reduces `tensor`, whose first dimension is a multiple of size(), and gives this rank its equal
  // share of that dimension: [n * size(), ...] to [n, ...].
  [[nodiscard]] Tensor reduce_scatter(const Tensor& tensor, ReduceOp op = ReduceOp::SUM) {
    return reduce_scatter_async(tensor, std::move(op), Mode::kBlocking).wait();
  }
  Work<Tensor> reduce_scatter_async(const Tensor& tensor, ReduceOp op = ReduceOp::SUM,
                                    Mode mode = Mode::kAsync);

  // Cuts `tensor` along its first dimension into equal parts, sends part i to rank i and returns
  // what came, in the order of ranks: the transposition of who has what.
  [[nodiscard]] Tensor all_to_all(const Tensor& tensor) {
    return all_to_all_async(tensor, {}, {}, Mode::kBlocking).wait();
  }
  // With parts of given lengths: `sent[i]` rows go to rank i and `received[i]` come from it.
  Work<Tensor> all_to_all_async(const Tensor& tensor, std::vector<std::int64_t> sent,
                                std::vector<std::int64_t> received, Mode mode = Mode::kAsync);
  // `parts[i]` goes to rank i; what rank i sent here is element i of the result. First dimensions
  // may all differ (lengths are exchanged first), the others and the type must agree.
  [[nodiscard]] Tensors all_to_all(const Tensors& parts);

  // Returns when every rank has called it. Over NCCL it also waits for the GPU.
  void barrier() { barrier_async(Mode::kBlocking).wait(); }
  Work<> barrier_async(Mode mode = Mode::kAsync);

  // From rank to rank; the pair must agree on shape and type. Messages with equal `tag` between the
  // same two ranks keep their order. Not to itself. Over NCCL there are no tags, and the calls of a
  // group run one after the other on the GPU: where everybody sends before receiving, what NCCL's
  // buffers cannot hold (some hundred kilobytes) waits for ever; have one side of each pair receive
  // first.
  void send(const Tensor& tensor, int dst, int tag = 0) { send_async(tensor, dst, tag).wait(); }
  Work<> send_async(const Tensor& tensor, int dst, int tag = 0);
  void recv(Tensor into, int src, int tag = 0) { recv_async(std::move(into), src, tag).wait(); }
  Work<> recv_async(Tensor into, int src, int tag = 0);
  // From the rank whose message comes first; returns its number. Not over NCCL.
  int recv_from_any(Tensor into, int tag = 0);

  // --- Plain values and strings, through the CPU, whatever the backend.

  // The value of rank `src`; the others' argument is ignored.
  template <NumberOrBool T>
  [[nodiscard("the value is returned: only a tensor is written in place")]] T broadcast(
      T value, int src = 0) {
    broadcast(view_of(&value, sizeof value), src);
    return value;
  }
  [[nodiscard]] std::string broadcast(std::string text, int src = 0);

  // Integers are reduced as 64 bits, floating-point numbers as double. AVG of integers drops the
  // remainder.
  template <Number T>
  [[nodiscard("the sum is returned: only a tensor is written in place")]] T all_reduce(
      T value, ReduceOp op = ReduceOp::SUM);
  [[nodiscard]] bool all_of(bool value) { return all_reduce(value ? 1 : 0, ReduceOp::MIN) != 0; }
  [[nodiscard]] bool any_of(bool value) { return all_reduce(value ? 1 : 0, ReduceOp::MAX) != 0; }

  // One value per rank; of gather on rank `dst`, elsewhere none.
  template <NumberOrBool T>
  [[nodiscard]] std::vector<T> all_gather(T value) {
    return values_of<T>(all_gather(view_of(&value, sizeof value)));
  }
  template <NumberOrBool T>
  [[nodiscard]] std::vector<T> gather(T value, int dst = 0) {
    return values_of<T>(gather(view_of(&value, sizeof value), dst));
  }
  [[nodiscard]] std::vector<std::string> all_gather(const std::string& text);
  [[nodiscard]] std::vector<std::string> gather(const std::string& text, int dst = 0);

  // --- Serialisable values (serialize.h), through the CPU.

  template <typename T>
  [[nodiscard]] T broadcast_object(T value, int src = 0) {
    std::string bytes = broadcast(rank() == src ? to_bytes(value) : std::string(), src);
    if (rank() == src) return value;
    return from_bytes<T>(bytes);
  }
  template <typename T>
  [[nodiscard]] std::vector<T> all_gather_object(const T& value) {
    return decoded<T>(all_gather(to_bytes(value)));
  }
  template <typename T>
  [[nodiscard]] std::vector<T> gather_object(const T& value, int dst = 0) {
    return decoded<T>(gather(to_bytes(value), dst));
  }

  // --- One rank works for all.

  // Calls f() on rank `where`, or with std::nullopt on every rank, and returns when it is done
  // there. The value (serialisable, or none) of the one rank is returned on every rank; of every
  // rank its own. When f throws, that rank throws the same on, and all others a Failure that names
  // it and has its text: no rank hangs, and none continues as if nothing had happened.
  template <typename Function>
  std::invoke_result_t<Function&> run_on(std::optional<int> where, Function&& f);

 protected:
  Group() = default;  // of Context
  std::shared_ptr<detail::Membership> membership_;

 private:
  friend struct detail::ContextAccess;
  explicit Group(std::shared_ptr<detail::Membership> membership)
      : membership_(std::move(membership)), is_ours_to_end_(true) {}
  bool is_ours_to_end_ = false;  // a smaller group; Context ends its own in leave()

  struct Call;
  detail::Operation start(const Call& call, Tensors kept, const detail::Operation::Begin& begin,
                          std::function<void()> finish = nullptr);
  void compare_calls(const std::string& call);
  void check_rank(const char* name, int rank) const;

  // As bytes.
  static Tensor view_of(void* memory, std::size_t size) {
    return torch::from_blob(memory, {static_cast<std::int64_t>(size)}, torch::kUInt8);
  }
  template <typename Wide>
  Wide all_reduce_one(Wide value, const ReduceOp& op) {
    all_reduce(torch::from_blob(&value, {1}, c10::CppTypeToScalarType<Wide>::value), op);
    return value;
  }
  template <typename T>
  static std::vector<T> values_of(const Tensors& all) {
    std::vector<T> values;
    for (const Tensor& bytes : all)
      values.push_back(*static_cast<const T*>(bytes.const_data_ptr()));
    return values;
  }
  template <typename T>
  static std::vector<T> decoded(const std::vector<std::string>& all) {
    std::vector<T> values;
    values.reserve(all.size());
    for (const std::string& bytes : all) values.push_back(from_bytes<T>(bytes));
    return values;
  }
};

// A tensor as an object: any type and layout; arrives on the CPU, dense.
template <>
struct Codec<torch::Tensor> {
  static void write(ByteWriter& writer, const torch::Tensor& tensor);
  static torch::Tensor read(ByteReader& reader);
};

template <Number T>
T Group::all_reduce(T value, ReduceOp op) {
  if constexpr (std::is_floating_point_v<T>) {
    return static_cast<T>(all_reduce_one<double>(value, op));
  } else {
    constexpr bool is_unsigned_64 = std::is_unsigned_v<T> && sizeof(T) == sizeof(std::uint64_t);
    if (is_unsigned_64 && op == ReduceOp::AVG) {
      return all_reduce(value) / static_cast<T>(size());
    }
    // Unsigned 64 bits have the order of signed ones when the highest bit is flipped.
    const bool is_flipped = is_unsigned_64 && (op == ReduceOp::MIN || op == ReduceOp::MAX);
    const std::uint64_t flip = is_flipped ? std::uint64_t{1} << 63 : 0;
    const auto bits = static_cast<std::uint64_t>(value) ^ flip;
    const std::int64_t sum = all_reduce_one(std::bit_cast<std::int64_t>(bits), op);
    return static_cast<T>(std::bit_cast<std::uint64_t>(sum) ^ flip);
  }
}

template <typename Function>
std::invoke_result_t<Function&> Group::run_on(std::optional<int> where, Function&& f) {
  using Value = std::invoke_result_t<Function&>;
  if (where) check_rank("run_on", *where);
  detail::Outcome<Value> mine;
  if (!where || *where == rank()) mine.of(f);
  detail::throw_together(*this, mine.thrown, "run_on");
  if constexpr (!std::is_void_v<Value>) {
    if (!where) return std::move(*mine.value);
    const std::string bytes =
        broadcast(rank() == *where ? to_bytes<Value>(*mine.value) : std::string(), *where);
    return rank() == *where ? std::move(*mine.value) : from_bytes<Value>(bytes);
  }
}

}  // namespace ddprun
