#include "agent/query/stack_query.h"

#include <cxxabi.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "agent/text/json_fields.h"
#include "rendezvous/common/trimmed.h"

namespace ddprun::agent {

static void fields(auto& json, Is<StackQuery> auto& question) {
  json.constant("ask", "stacks");
  json("ranks", question.ranks);
  json.may_lack("without", question.without);
  json.may_lack("is_brief", question.is_brief);
  json.may_lack("has_all_threads", question.has_all_threads);
}

static void fields(auto& json, Is<ThreadStack> auto& stack) {
  json("names", stack.names);
  json("threads", stack.threads);
  json("is_main", stack.is_main);
  json("stack", Whole{stack.stack});
}

static void fields(auto& json, Is<WorkerStacks> auto& stacks) {
  json("rank", stacks.rank);
  json("host", stacks.host);
  json("pid", stacks.pid);
  json("state", stacks.state);
  json("source", stacks.source);
  json("threads", stacks.threads);
  json("trouble", stacks.trouble);
}

namespace {

constexpr std::size_t kFrameBytesMax = 200;
constexpr std::size_t kFunctionBytesMax = 120;  // a template's name may be a page long
// agent/python/sitecustomize.py
constexpr std::string_view kFileOfHooks = "<frozen importlib of ddprun>/";

// A thread as it is found in the text, before those with equal stacks are put together.
struct Found {
  std::int64_t id = 0;  // kAsked: the main thread, which was asked for all stacks
  std::string name;
  std::string stack;
  bool is_ours = false;  // a thread of ddprun's hooks: its outermost frame is
};
constexpr std::int64_t kAsked = -1;

std::string_view file_name(std::string_view path) { return path.substr(path.rfind('/') + 1); }

// The text between `before` and `after`, from the first `before` on.
std::string_view between(std::string_view line, std::string_view before, std::string_view after) {
  const auto begin = line.find(before);
  if (begin == std::string_view::npos) return {};
  line.remove_prefix(begin + before.size());
  return line.substr(0, line.find(after));
}

std::int64_t number_at_front(std::string_view text) {
  std::int64_t value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

// Where the arguments begin: at the first " (" that is not inside of a template's <…>.
std::size_t end_of_function(std::string_view frame) {
  int depth = 0;
  for (std::size_t at = 0; at < frame.size(); ++at) {
    if (frame[at] == '<') ++depth;
    if (frame[at] == '>' && depth > 0) --depth;
    if (depth == 0 && frame.substr(at).starts_with(" (")) return at;
  }
  return frame.size();
}

// A line in which a function has the linker's name, with that of the program.
std::string demangled(std::string_view line) {
  const auto begin = line.find(" _Z");
  if (begin == std::string_view::npos) return std::string(line);
  const auto name_begin = begin + 1;
  const auto end = std::min(line.find_first_of(" @", name_begin), line.size());
  int failed = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(
      abi::__cxa_demangle(std::string(line.substr(name_begin, end - name_begin)).c_str(), nullptr,
                          nullptr, &failed),
      &std::free);
  if (!name) return std::string(line);
  return std::string(line.substr(0, name_begin)) + name.get() + std::string(line.substr(end));
}

// gdb:      #5  0x00007f2a in c10d::Reducer::wait (this=0x1) at ./reducer.cpp:30
//           #6  0x00007f2b in ?? () from /usr/lib/libtorch_cpu.so
//           #7  0x00007f2c in _ZN4c10d7Reducer4waitEv ()
// eu-stack: #5  0x00007f2a c10d::Reducer::wait()
std::optional<std::string> frame_in(std::string_view line) {
  if (!line.starts_with('#')) return std::nullopt;
  const std::string with_names = demangled(line);
  line = with_names;
  line.remove_prefix(std::min(line.find_first_not_of("#0123456789"), line.size()));
  line = trimmed(line);
  if (line.starts_with("0x")) line = trimmed(line.substr(std::min(line.find(' '), line.size())));
  if (line.starts_with("in ")) line.remove_prefix(3);
  // Where it is: behind the arguments, which may have either word in a text.
  std::string place;
  if (const auto at = line.rfind(" at "); at != std::string_view::npos && line[at - 1] == ')') {
    place = file_name(line.substr(at + 4));
  } else if (const auto from = line.rfind(" from ");
             from != std::string_view::npos && line[from - 1] == ')') {
    place = file_name(line.substr(from + 6));
  }
  std::string_view function = line;
  if (!line.ends_with("()") || !place.empty()) function = line.substr(0, end_of_function(line));
  if (place.empty()) function = function.substr(0, function.find('@'));  // of a symbol's version
  if (function.empty()) function = "??";
  std::string frame(function.substr(0, kFunctionBytesMax));
  if (function.size() > kFunctionBytesMax) frame += "…";
  return frame + (place.empty() ? "" : " (" + place + ")");
}

// faulthandler:  File "/home/me/train.py", line 12 in load
std::optional<std::string> frame_of_python(std::string_view line) {
  if (!line.starts_with("  File \"")) return std::nullopt;
  const auto end = line.rfind("\", line ");
  if (end == std::string_view::npos) return std::nullopt;
  const std::string_view rest = line.substr(end + 8);
  const auto in = rest.find(" in ");
  if (in == std::string_view::npos) return std::nullopt;
  return std::string(rest.substr(in + 4)) + " (" + std::string(file_name(line.substr(8, end - 8))) +
         ":" + std::string(rest.substr(0, in)) + ")";
}

// faulthandler: Current thread 0x00007f2a [name] (most recent call first):, or Thread 0x…; of the main thread alone Stack (most …
// py-spy:    Thread 4711 (idle): "MainThread"
// gdb:       Thread 1 (Thread 0x7f2a (LWP 4711) "train"):, or Thread 1 (process 4711 "train"):
// eu-stack:  TID 4711:
std::optional<Found> thread_in(std::string_view line) {
  if (line.starts_with("TID ")) return Found{number_at_front(line.substr(4)), {}, {}};
  if (line.ends_with(" (most recent call first):")) {
    Found thread;
    if (line.starts_with("Current thread ") || line.starts_with("Stack ")) thread.id = kAsked;
    thread.name = between(line, "[", "]");
    return thread;
  }
  if (!line.starts_with("Thread ")) return std::nullopt;
  const std::string name(between(line, "\"", "\""));
  for (const char* const kind : {"(LWP ", "(process "}) {
    if (const auto id = between(line, kind, ")"); !id.empty()) {
      return Found{number_at_front(id), name, {}};
    }
  }
  if (line.find("): ") == std::string_view::npos && !line.ends_with(')')) return std::nullopt;
  return Found{number_at_front(line.substr(7)), name, {}};
}

// stacks_of():  "  4711 train, 4712 gloo: S (sleeping), waits in futex_wait_queue" and the kernel's stack
std::vector<Found> threads_of_kernel(std::string_view line) {
  std::vector<Found> found;
  const auto colon = line.rfind(": ");
  std::string_view who = trimmed(line.substr(0, colon));
  const std::string_view what = trimmed(line.substr(colon + 2));
  while (!who.empty()) {
    const auto comma = who.find(", ");
    const std::string_view each = who.substr(0, comma);
    const auto space = each.find(' ');
    Found thread{number_at_front(each), {}, std::string(what) + "\n"};
    if (space != std::string_view::npos) thread.name = each.substr(space + 1);
    found.push_back(std::move(thread));
    who.remove_prefix(comma == std::string_view::npos ? who.size() : comma + 2);
  }
  return found;
}

bool is_of_kernel(std::string_view line) {
  return line.starts_with("  ") && line.size() > 2 && line[2] >= '0' && line[2] <= '9' &&
         line.find(": ") != std::string_view::npos;
}

void add_name(std::string& names, std::string_view name) {
  if (name.empty() || (", " + names + ", ").find(", " + std::string(name) + ", ") != names.npos) {
    return;
  }
  names += (names.empty() ? "" : ", ") + std::string(name);
}

std::vector<Found> find_threads(std::string_view text) {
  std::vector<Found> threads;
  std::size_t filling = 0;  // how many of the last threads the next frame belongs to
  while (!text.empty()) {
    const auto end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (auto thread = thread_in(line)) {
      threads.push_back(std::move(*thread));
      filling = 1;
    } else if (is_of_kernel(line)) {
      auto found = threads_of_kernel(line);
      filling = found.size();
      std::ranges::move(found, std::back_inserter(threads));
    } else if (filling > 0) {
      std::string frame;
      if (auto of_python = frame_of_python(line)) {
        frame = std::move(*of_python);
        threads.back().is_ours = line.find(kFileOfHooks) != std::string_view::npos;
        if (threads.back().is_ours) continue;
      } else if (auto of_debugger = frame_in(line)) {
        frame = std::move(*of_debugger);
      } else if (line.starts_with("      [<")) {
        frame = std::string("kernel: ") + std::string(trimmed(line.substr(line.find(']') + 1)));
      } else if (line.starts_with("    ") && !line.starts_with("      ")) {  // py-spy
        frame = trimmed(line);
      } else {
        if (trimmed(line).empty()) filling = 0;
        continue;
      }
      for (std::size_t i = threads.size() - filling; i < threads.size(); ++i) {
        threads[i].stack += frame + "\n";
      }
    }
  }
  std::erase_if(threads, [](const Found& thread) {
    return thread.stack.empty() || (thread.is_ours && thread.id != kAsked);
  });
  return threads;
}

}  // namespace

std::string to_json(const StackQuery& question) {
  return boost::json::serialize(JsonWriter::of(question));
}

Result<StackQuery> stack_query_from(std::string_view text) {
  return parse_json<StackQuery>(text, "the question for stacks");
}

std::string to_json(const std::vector<WorkerStacks>& stacks) {
  return boost::json::serialize(JsonWriter::of(stacks));
}

Result<std::vector<WorkerStacks>> worker_stacks_from(std::string_view text) {
  return parse_json<std::vector<WorkerStacks>>(text, "the answer about stacks");
}

std::vector<ThreadStack> threads_in(std::string_view text, std::int64_t pid,
                                    std::string_view of_kernel) {
  std::map<std::int64_t, std::string> names;
  for (Found& thread : find_threads(of_kernel)) names[thread.id] = std::move(thread.name);
  std::vector<ThreadStack> stacks;
  for (Found& thread : find_threads(text)) {
    const bool is_main = thread.id == pid || thread.id == kAsked;
    if (thread.name.empty()) thread.name = names[thread.id];
    auto same = std::ranges::find(stacks, thread.stack, &ThreadStack::stack);
    if (same == stacks.end()) {
      same = stacks.insert(stacks.end(), {{}, 0, false, std::move(thread.stack)});
    }
    same->threads += 1;
    same->is_main = same->is_main || is_main;
    add_name(same->names, thread.name);
  }
  std::ranges::stable_partition(stacks, &ThreadStack::is_main);
  return stacks;
}

std::string program_frames_in(std::string_view text) {
  std::string frames;
  bool is_main = false;
  for (std::size_t count = 0; !text.empty() && count < kProgramFramesMax;) {
    const auto end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (const auto thread = thread_in(line)) is_main = thread->id == kAsked;
    if (!is_main) continue;
    const bool is_of_library =
        line.find("/site-packages/") != line.npos || line.find("/dist-packages/") != line.npos ||
        line.find("/lib/python3") != line.npos || line.find("\"<") != line.npos;
    if (is_of_library) continue;
    if (const auto frame = frame_of_python(line)) {
      frames += frame->substr(0, kFrameBytesMax) + "\n";
      ++count;
    }
  }
  return frames;
}

namespace {

// The innermost ones, and "…" for the others.
void keep_frames(ThreadStack& thread, int count) {
  std::size_t end = 0;
  for (int i = 0; i < count && end < thread.stack.size(); ++i) {
    end = thread.stack.find('\n', end) + 1;
  }
  if (end < thread.stack.size()) thread.stack.replace(end, std::string::npos, "…\n");
}

}  // namespace

void make_brief(WorkerStacks& stacks) {
  constexpr int kFramesOfReport = 16;
  if (stacks.threads.size() > 1) stacks.threads.resize(1);
  for (ThreadStack& thread : stacks.threads) keep_frames(thread, kFramesOfReport);
}

void shorten(WorkerStacks& stacks, std::size_t bytes_max) {
  constexpr int kFramesKept = 12;
  const auto size = [&stacks] {
    std::size_t sum = 256;
    for (const ThreadStack& each : stacks.threads)
      sum += each.stack.size() + each.names.size() + 64;
    return sum;
  };
  if (size() <= bytes_max) return;
  for (ThreadStack& thread : stacks.threads) keep_frames(thread, kFramesKept);
  int left_out = 0;
  while (stacks.threads.size() > 1 && size() > bytes_max) {
    left_out += stacks.threads.back().threads;
    stacks.threads.pop_back();
  }
  if (left_out == 0) return;
  if (!stacks.trouble.empty()) stacks.trouble += "; ";
  stacks.trouble +=
      std::to_string(left_out) +
      " threads are left out, for which the answer has no room: ask for this rank alone";
}

}  // namespace ddprun::agent
