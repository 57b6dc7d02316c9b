// What ddprun.join() adds to each step of a Python program, as types for Python: between two steps of a training nothing of
// the interpreter is in the processor's caches, and the same in Python takes five times as long.
//
// ddprun/replace.py derives its Job from StepPath, which has a step as it usually is: nobody has died, and what is written
// beside the copied memory is what was written in the step before. Whatever else is the case, StepPath calls a method of
// that name of Job's, and goes on with what it returns or has changed.
//
//   a batch is given    _note                    the generators are not where they were
//                       _note_given              likewise
//                       _refuse_batch            it is to be given again, and was written into
//                       _restore_given           it is given again
//                       _refuse_steps            the number of steps that were made with it is not 1
//   entry of a step     _before_entry            not offered yet, or a newer generation
//                       _text_of_entry           what is written has changed, or is asked for each time
//                       _after_entry             not offered yet
//   forward             _after_forward_of        its output is no tensor with a gradient
//   backward            _before_first_gradients  not offered yet
//                       _text_of_effect          as above
//   end of a step       _check_step              not offered yet, or something is amiss
//                       _after_commit            not offered yet, or the group was made again not long ago
//                       _note_settings           they have changed
//                       _fail                    an exception
//   a record            _write_larger            there is no room
//
// The thread that trains calls, with the GIL. Of Python's limited API, so that one binary is for all versions from 3.10 on.
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030a0000
#include <Python.h>
#include <structmember.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>

#include "worker_lib/c10d/gloo_interrupt.h"
#include "worker_lib/process/crc32c.h"
#include "worker_lib/process/shared_memory.h"
#include "worker_lib/process/unwind_tables.h"

namespace {

struct Release {
  void operator()(PyObject* object) const { Py_DECREF(object); }
};
using Owned = std::unique_ptr<PyObject, Release>;

Owned owned(PyObject* borrowed) {
  Py_XINCREF(borrowed);
  return Owned(borrowed);
}

template <typename T>
PyObject* object(T* its) {
  return reinterpret_cast<PyObject*>(its);
}

template <typename Function>
PyCFunction method(Function* function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

template <typename Function>
void* slot(Function* function) {
  return reinterpret_cast<void*>(function);
}

void* slot(const char* text) { return const_cast<char*>(text); }

void set_to(PyObject*& place, PyObject* owned_value) {
  PyObject* before = place;
  place = owned_value;
  Py_XDECREF(before);
}

void free_object(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);
}

PyTypeObject* tensor_type = nullptr;
PyTypeObject* blocks_type = nullptr;
PyTypeObject* seen_type = nullptr;
PyTypeObject* given_type = nullptr;
PyTypeObject* step_type = nullptr;
PyTypeObject* path_type = nullptr;

PyObject* own_hook = nullptr;  // its number in a tensor's hooks: PyTorch's own count from 0

// Of an attribute or a method.
struct Name {
  template <std::size_t size>
  constexpr Name(const char (&its)[size]) {
    std::copy_n(its, size, text);
  }
  char text[32] = {};
};

// Null with an exception if there is no memory for it.
template <Name name>
PyObject* interned() {
  static PyObject* const its = PyUnicode_InternFromString(name.text);
  return its;
}

template <Name name>
Owned get(PyObject* from) {
  PyObject* its = interned<name>();
  return Owned(its != nullptr ? PyObject_GetAttr(from, its) : nullptr);
}

template <Name name, typename... Arguments>
Owned call(PyObject* from, Arguments... arguments) {
  PyObject* its = interned<name>();
  return Owned(its != nullptr ? PyObject_CallMethodObjArgs(from, its, arguments..., nullptr)
                              : nullptr);
}

bool is_tensor(PyObject* value) { return PyType_IsSubtype(Py_TYPE(value), tensor_type) != 0; }
bool is_just_tensor(PyObject* value) { return Py_TYPE(value) == tensor_type; }

// ---- batches that may be given again

// Of containers in containers; Py_EnterRecursiveCall() has raised the error if it is false.
class Deeper {
 public:
  Deeper() : is_possible_(Py_EnterRecursiveCall(" in a batch") == 0) {}
  ~Deeper() {
    if (is_possible_) Py_LeaveRecursiveCall();
  }
  Deeper(const Deeper&) = delete;
  Deeper& operator=(const Deeper&) = delete;
  explicit operator bool() const { return is_possible_; }

 private:
  bool is_possible_;
};

// A new list of what `function` returns for each.
template <typename Function>
Owned list_of(PyObject* values, Function function) {
  Owned list(PyList_New(0));
  const bool is_tuple = PyTuple_Check(values);
  for (Py_ssize_t i = 0; list && i < (is_tuple ? PyTuple_Size(values) : PyList_Size(values)); ++i) {
    const Owned each = owned(is_tuple ? PyTuple_GetItem(values, i) : PyList_GetItem(values, i));
    const Owned its = each ? function(each.get()) : nullptr;
    if (!its || PyList_Append(list.get(), its.get()) != 0) return nullptr;
  }
  return list;
}

Owned versions(PyObject* batch) {
  if (is_tensor(batch)) return get<"_version">(batch);
  const bool is_dict = PyDict_Check(batch);
  if (!is_dict && !PyList_Check(batch) && !PyTuple_Check(batch)) return owned(Py_None);
  const Deeper deeper;
  if (!deeper) return nullptr;
  const Owned values = is_dict ? Owned(PyDict_Values(batch)) : owned(batch);
  return values ? list_of(values.get(), versions) : nullptr;
}

Owned copy_of(PyObject* batch) {
  const bool is_dict = PyDict_CheckExact(batch), is_tuple = PyTuple_CheckExact(batch);
  if (!is_dict && !is_tuple && !PyList_CheckExact(batch)) return owned(batch);
  const Deeper deeper;
  if (!deeper) return nullptr;
  if (is_tuple) {
    // It cannot be changed: only what is in it.
    bool has_others = false;
    for (Py_ssize_t i = 0; i < PyTuple_Size(batch); ++i) {
      has_others = has_others || !is_just_tensor(PyTuple_GetItem(batch, i));
    }
    if (!has_others) return owned(batch);
  }
  if (!is_dict) {
    Owned list = list_of(batch, copy_of);
    return list && is_tuple ? Owned(PyList_AsTuple(list.get())) : std::move(list);
  }
  Owned copy(PyDict_Copy(batch));
  PyObject *key = nullptr, *value = nullptr;
  for (Py_ssize_t at = 0; copy && PyDict_Next(batch, &at, &key, &value) != 0;) {
    const Owned its = copy_of(value);
    if (!its || (its.get() != value && PyDict_SetItem(copy.get(), key, its.get()) != 0)) {
      return nullptr;
    }
  }
  return copy;
}

PyObject* versions_for_python(PyObject*, PyObject* batch) { return versions(batch).release(); }
PyObject* copy_of_for_python(PyObject*, PyObject* batch) { return copy_of(batch).release(); }

// ---- records of a worker's mirror (worker_lib/python/ddprun/mirror.py, which reads them)

struct Block {
  const void* bytes;
  std::uint64_t size;
};

struct Record {
  std::uint64_t place;
  std::int64_t number;
  std::string_view text, more_text;  // the text is both, one after the other
  std::span<const Block> blocks;
};

// As ddprun/mirror.py has them.
struct MirrorHeader {
  std::uint64_t magic;
  std::uint64_t places;
  std::uint64_t room;  // bytes of a record
};
struct RecordHead {
  ddprun::Turn turn;
  std::int64_t number;
  std::uint64_t size;
};
constexpr std::size_t kHeaderBytes = 64;  // of either

char* copy(char* to, const void* from, std::size_t size) {
  if (size > 0) std::memcpy(to, from, size);
  return to + size;
}

char* copy_blocks(char* to, std::span<const Block> blocks) {
  for (const Block& block : blocks) to = copy(to, block.bytes, block.size);
  return to;
}

// It is whole or not there. False: there is no room for it, and nothing was written.
bool write_record(char* mirror, const Record& record) {
  const std::uint64_t room = reinterpret_cast<const MirrorHeader*>(mirror)->room;
  const std::uint64_t text_size = record.text.size() + record.more_text.size();
  std::uint64_t size = sizeof text_size + text_size;
  for (const Block& block : record.blocks) size += block.size;
  if (size > room) return false;
  char* to = mirror + kHeaderBytes + record.place * (kHeaderBytes + room);
  auto& head = *reinterpret_cast<RecordHead*>(to);
  head.turn.begin();
  head.number = record.number;
  head.size = size;
  to = copy(to + kHeaderBytes, &text_size, sizeof text_size);
  to = copy(to, record.text.data(), record.text.size());
  to = copy(to, record.more_text.data(), record.more_text.size());
  copy_blocks(to, record.blocks);
  head.turn.end();
  return true;
}

// ---- memory that is copied into records

struct Blocks {
  PyObject_HEAD Block* first;
  Py_ssize_t count;
};

std::span<const Block> blocks_of(const Blocks* blocks) {
  return {blocks->first, static_cast<std::size_t>(blocks->count)};
}

Blocks* as_blocks(PyObject* value) {
  return value != nullptr && Py_TYPE(value) == blocks_type ? reinterpret_cast<Blocks*>(value)
                                                           : nullptr;
}

// An object of `type`, which has Kept's layout, with room for an element of each of the list in `arguments`.
template <typename Kept>
Owned with_room(PyTypeObject* type, PyObject* arguments, PyObject*& list) {
  if (PyArg_ParseTuple(arguments, "O!", &PyList_Type, &list) == 0) return nullptr;
  Owned made(PyType_GenericAlloc(type, 0));
  if (!made) return nullptr;
  auto*& first = reinterpret_cast<Kept*>(made.get())->first;
  void* room = PyMem_Calloc(static_cast<std::size_t>(PyList_Size(list)), sizeof *first);
  first = static_cast<std::remove_reference_t<decltype(first)>>(room);
  return first != nullptr ? std::move(made) : Owned(PyErr_NoMemory());
}

// Borrowed; null with a TypeError if it is none.
PyObject* tuple_in(PyObject* list, Py_ssize_t at, const char* what_it_is) {
  PyObject* tuple = PyList_GetItem(list, at);
  if (tuple == nullptr || PyTuple_Check(tuple) != 0) return tuple;
  PyErr_SetString(PyExc_TypeError, what_it_is);
  return nullptr;
}

PyObject* new_blocks(PyTypeObject* type, PyObject* arguments, PyObject*) {
  PyObject* pairs = nullptr;
  Owned made = with_room<Blocks>(type, arguments, pairs);
  if (!made) return nullptr;
  auto* self = reinterpret_cast<Blocks*>(made.get());
  const Py_ssize_t count = PyList_Size(pairs);
  for (Py_ssize_t i = 0; i < count; ++i) {
    unsigned long long address = 0, size = 0;
    PyObject* pair = tuple_in(pairs, i, "a block is a pair of address and size");
    if (pair == nullptr || PyArg_ParseTuple(pair, "KK", &address, &size) == 0) return nullptr;
    self->first[i] = {reinterpret_cast<const void*>(address), size};
  }
  self->count = count;
  return made.release();
}

void free_blocks(PyObject* self) {
  PyMem_Free(reinterpret_cast<Blocks*>(self)->first);
  free_object(self);
}

PyObject* copy_blocks_to(PyObject* self, PyObject* address) {
  const unsigned long long to = PyLong_AsUnsignedLongLong(address);
  if (PyErr_Occurred() != nullptr) return nullptr;
  copy_blocks(reinterpret_cast<char*>(to), blocks_of(reinterpret_cast<Blocks*>(self)));
  Py_RETURN_NONE;
}

PyMethodDef blocks_methods[] = {{"copy_to", copy_blocks_to, METH_O, nullptr}, {}};
PyType_Slot blocks_slots[] = {
    {Py_tp_doc,
     slot("Memory that is copied into records: of a list of pairs of address and size.")},
    {Py_tp_new, slot(new_blocks)},
    {Py_tp_dealloc, slot(free_blocks)},
    {Py_tp_methods, blocks_methods},
    {}};
PyType_Spec blocks_spec{"ddprun.in_place.Blocks", sizeof(Blocks), 0, Py_TPFLAGS_DEFAULT,
                        blocks_slots};

PyObject* write_record_for_python(PyObject*, PyObject* arguments) {
  unsigned long long mirror = 0, place = 0;
  long long number = 0;
  const char* text = nullptr;
  Py_ssize_t size = 0;
  PyObject* blocks = nullptr;
  if (PyArg_ParseTuple(arguments, "KKLy#O!", &mirror, &place, &number, &text, &size, blocks_type,
                       &blocks) == 0) {
    return nullptr;
  }
  const bool is_written = write_record(reinterpret_cast<char*>(mirror),
                                       {.place = place,
                                        .number = number,
                                        .text = {text, static_cast<std::size_t>(size)},
                                        .more_text = {},
                                        .blocks = blocks_of(reinterpret_cast<Blocks*>(blocks))});
  return PyBool_FromLong(is_written ? 1 : 0);
}

// ---- whether something is as it was

enum Kind { kAttribute, kItem, kAbsent, kValues, kMemory, kKinds };
constexpr const char* kKindNames[kKinds] = {"ATTRIBUTE", "ITEM", "ABSENT", "VALUES", "MEMORY"};

struct Condition {
  Kind kind;
  PyObject *of, *name, *value;
  std::string_view bytes;  // of memory, those of `value`
  const char* address;
};

struct Seen {
  PyObject_HEAD Condition* first;  // none: it was cleared by the garbage collector
  Py_ssize_t count;
};

std::span<Condition> conditions_of(PyObject* self) {
  auto* seen = reinterpret_cast<Seen*>(self);
  return {seen->first, static_cast<std::size_t>(seen->count)};
}

bool has_values(PyObject* of, PyObject* expected) {
  const Py_ssize_t count = PyTuple_Size(expected);
  Py_ssize_t at = 0, i = 0;
  if (PyList_Check(of) != 0) {
    while (i < count && i < PyList_Size(of) &&
           PyList_GetItem(of, i) == PyTuple_GetItem(expected, i)) {
      ++i;
    }
    return i == count && PyList_Size(of) == count;
  }
  for (PyObject* value = nullptr; PyDict_Next(of, &at, nullptr, &value) != 0; ++i) {
    if (i >= count || PyTuple_GetItem(expected, i) != value) return false;
  }
  return i == count;
}

// 1: yes, 0: no, -1: an exception.
int holds(const Condition& condition) {
  PyObject* value = nullptr;
  switch (condition.kind) {
    case kAttribute: {
      const Owned attribute(PyObject_GetAttr(condition.of, condition.name));
      return attribute ? attribute.get() == condition.value : -1;
    }
    case kValues:
      return has_values(condition.of, condition.value) ? 1 : 0;
    case kMemory:
      return std::memcmp(condition.address, condition.bytes.data(), condition.bytes.size()) == 0;
    default:
      value = PyDict_GetItemWithError(condition.of, condition.name);
      if (value == nullptr && PyErr_Occurred() != nullptr) return -1;
      return value == (condition.kind == kItem ? condition.value : nullptr);
  }
}

// 1: all is as it was, 0: it is not, or `self` is no Seen. -1: an exception that is none of a missing attribute.
int is_as_seen(PyObject* self) {
  if (self == nullptr || Py_TYPE(self) != seen_type) return 0;
  if (reinterpret_cast<Seen*>(self)->first == nullptr) return 0;
  const Owned kept = owned(self);  // an attribute may run anything
  for (const Condition& each : conditions_of(self)) {
    const int it_does = holds(each);
    if (it_does > 0) continue;
    if (it_does < 0 && PyErr_ExceptionMatches(PyExc_Exception) == 0) return -1;
    PyErr_Clear();
    return 0;
  }
  return 1;
}

PyObject* new_seen(PyTypeObject* type, PyObject* arguments, PyObject*) {
  PyObject* list = nullptr;
  Owned made = with_room<Seen>(type, arguments, list);
  if (!made) return nullptr;
  auto* self = reinterpret_cast<Seen*>(made.get());
  const Py_ssize_t count = PyList_Size(list);
  for (Py_ssize_t i = 0; i < count; ++i) {
    int kind = 0;
    PyObject *of = nullptr, *name = nullptr, *value = nullptr;
    PyObject* words = tuple_in(list, i, "a condition is a tuple");
    if (words == nullptr || PyArg_ParseTuple(words, "iOOO", &kind, &of, &name, &value) == 0) {
      return nullptr;
    }
    Condition& condition = self->first[i];
    condition = {static_cast<Kind>(kind),
                 owned(of).release(),
                 owned(name).release(),
                 owned(value).release(),
                 {},
                 nullptr};
    self->count = i + 1;
    const bool is_of_dict = PyDict_Check(of) != 0;
    bool is_possible = false;
    if (kind == kMemory && PyBytes_Check(value) != 0) {
      char* bytes = nullptr;
      Py_ssize_t size = 0;
      if (PyBytes_AsStringAndSize(value, &bytes, &size) != 0) return nullptr;
      condition.bytes = {bytes, static_cast<std::size_t>(size)};
      condition.address = reinterpret_cast<const char*>(PyLong_AsUnsignedLongLong(name));
      if (PyErr_Occurred() != nullptr) return nullptr;
      is_possible = true;
    } else if (kind == kValues) {
      is_possible = (is_of_dict || PyList_Check(of) != 0) && PyTuple_Check(value) != 0;
    } else {
      is_possible = kind == kAttribute || ((kind == kItem || kind == kAbsent) && is_of_dict);
    }
    if (!is_possible) {
      PyErr_SetString(PyExc_TypeError, "no such condition");
      return nullptr;
    }
  }
  return made.release();
}

int traverse_seen(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  for (const Condition& each : conditions_of(self)) {
    Py_VISIT(each.of);
    Py_VISIT(each.name);
    Py_VISIT(each.value);
  }
  return 0;
}

int clear_seen(PyObject* self) {
  for (Condition& each : conditions_of(self)) {
    Py_CLEAR(each.of);
    Py_CLEAR(each.name);
    Py_CLEAR(each.value);
  }
  auto* seen = reinterpret_cast<Seen*>(self);
  seen->count = 0;
  PyMem_Free(seen->first);
  seen->first = nullptr;
  return 0;
}

void free_seen(PyObject* self) {
  PyObject_GC_UnTrack(self);
  clear_seen(self);
  free_object(self);
}

PyObject* seen_for_python(PyObject* self, PyObject*) {
  const int is_so = is_as_seen(self);
  return is_so < 0 ? nullptr : PyBool_FromLong(is_so);
}

PyMethodDef seen_methods[] = {{"is_so", seen_for_python, METH_NOARGS, nullptr}, {}};
PyType_Slot seen_slots[] = {
    {Py_tp_doc,
     slot("What something had, to see whether it has it still: a list of (kind, of, name, value).\n"
          "ATTRIBUTE: of.name is value. ITEM: of[name] is value. ABSENT: name not in of.\n"
          "VALUES: those of the dict or list are those of the tuple `value`.\n"
          "MEMORY: the bytes at the address `name`,\n"
          "which are there as long as `of` lives, are `value`.")},
    {Py_tp_new, slot(new_seen)},
    {Py_tp_dealloc, slot(free_seen)},
    {Py_tp_traverse, slot(traverse_seen)},
    {Py_tp_clear, slot(clear_seen)},
    {Py_tp_methods, seen_methods},
    {}};
PyType_Spec seen_spec{"ddprun.in_place.Seen", sizeof(Seen), 0,
                      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, seen_slots};

// ---- the steps of a training

enum Member {
  kGeneratorsSeen,
  kBuffersSeen,
  kSettingsSeen,
  kGeneratorBlocks,
  kEntryBlocks,
  kEffectBlocks,
  kEntryText,  // what is written if all is as it was seen; none: it is asked for
  kEffectText,
  kStates,         // a dict: generators of a loader's processes
  kOfProcesses,    // the same before the batches of this step were loaded
  kDdpAttributes,  // its __dict__
  kParameters,
  kVersionBlocks,  // their versions in memory, 32 bits each; none: the parameters are asked
  kMembers
};

struct StepPath {
  PyObject_HEAD char is_off;  // refused or withdrawn: steps are counted, no more
  char is_usual;              // offered, and in no generation that is not yet told
  char is_in_step, has_stepped;
  char has_given;        // gradients, since the last forward
  char was_ended;        // by the error for a lost rank, which must reach step()
  char again;            // the batch is to be given once more
  char gives_buffers;    // buffers of the model to all ranks, in the first forward of this step
  char has_noted;        // the generators as usual, before the batches of this step were loaded
  char has_noted_given;  // likewise, when the program was given them
  long long committed, generation, epoch, loop, steps;
  unsigned long long calls_at_commit;  // or at join()
  unsigned long long calls_at_entry;
  unsigned long long between;           // calls between the last step and this one
  unsigned long long weights_at_entry;  // the sum of their versions
  unsigned long long mirror_at, noted_at, given_at, wanted_at, committed_at;  // addresses
  PyObject* members[kMembers];
};

struct Position {
  std::int64_t epoch, loop, steps;
};

StepPath* path_of(PyObject* self) { return reinterpret_cast<StepPath*>(self); }

unsigned long long calls_now() { return *ddprun::detail::gloo_calls(); }

bool is_lost(const StepPath* self) {
  return self->wanted_at != 0 &&
         *reinterpret_cast<const volatile std::int64_t*>(self->wanted_at) > self->generation;
}

bool has_any(PyObject* dict) {
  return dict != nullptr && (PyDict_Check(dict) == 0 || PyDict_Size(dict) != 0);
}

// 1: what was written in the step before holds for this one, too; 0: it does not; -1: an exception.
int is_text_as_kept(StepPath* self, bool is_effect) {
  PyObject* kept = self->members[is_effect ? kEffectText : kEntryText];
  if (kept == nullptr || PyBytes_Check(kept) == 0) return 0;
  if (has_any(self->members[is_effect ? kStates : kOfProcesses])) return 0;
  if (!is_effect && self->has_noted == 0) return 0;
  for (const Member each : {kGeneratorsSeen, kBuffersSeen, kSettingsSeen}) {
    if (is_effect && each == kSettingsSeen) continue;
    const int is_so = is_as_seen(self->members[each]);
    if (is_so <= 0) return is_so;
  }
  return 1;
}

bool write_larger(StepPath* self, const Record& record, PyObject* blocks) {
  const Owned text(
      PyBytes_FromStringAndSize(record.text.data(), static_cast<Py_ssize_t>(record.text.size())));
  const Owned more(PyBytes_FromStringAndSize(record.more_text.data(),
                                             static_cast<Py_ssize_t>(record.more_text.size())));
  const Owned both(text && more ? PySequence_Concat(text.get(), more.get()) : nullptr);
  const Owned place(PyLong_FromUnsignedLongLong(record.place));
  const Owned number(PyLong_FromLongLong(record.number));
  return both && place && number &&
         call<"_write_larger">(object(self), place.get(), number.get(), both.get(), blocks);
}

bool write(StepPath* self, bool is_effect) {
  const int is_kept = is_text_as_kept(self, is_effect);
  if (is_kept < 0) return false;
  const Owned text = is_kept > 0 ? owned(self->members[is_effect ? kEffectText : kEntryText])
                     : is_effect ? call<"_text_of_effect">(object(self))
                                 : call<"_text_of_entry">(object(self));
  if (!text) return false;
  const Owned held = owned(self->members[is_effect ? kEffectBlocks : kEntryBlocks]);
  const Blocks* blocks = as_blocks(held.get());
  char* bytes = nullptr;
  Py_ssize_t size = 0;
  if (PyBytes_AsStringAndSize(text.get(), &bytes, &size) != 0) return false;
  if (blocks == nullptr || self->mirror_at == 0) {
    PyErr_SetString(PyExc_RuntimeError, "there is nothing to write, or no mirror");
    return false;
  }
  const Position position{self->epoch, self->loop, self->steps + (is_effect ? 1 : 0)};
  const Record record{
      .place = static_cast<std::uint64_t>(self->committed % 2 * 2 + (is_effect ? 1 : 0)),
      .number = self->committed,
      .text = {reinterpret_cast<const char*>(&position), sizeof position},
      .more_text = {bytes, static_cast<std::size_t>(size)},
      .blocks = blocks_of(blocks)};
  return write_record(reinterpret_cast<char*>(self->mirror_at), record) ||
         write_larger(self, record, held.get());
}

// The sum of the parameters' versions, which each change of a weight makes larger. False: an exception.
bool add_versions(const StepPath* self, unsigned long long& sum) {
  sum = 0;
  if (const Blocks* blocks = as_blocks(self->members[kVersionBlocks])) {
    for (const Block& each : blocks_of(blocks)) {
      std::uint32_t version = 0;
      std::memcpy(&version, each.bytes, sizeof version);
      sum += version;
    }
    return true;
  }
  PyObject* parameters = self->members[kParameters];
  for (Py_ssize_t i = 0; parameters != nullptr && i < PyTuple_Size(parameters); ++i) {
    const Owned version = get<"_version">(PyTuple_GetItem(parameters, i));
    if (!version) return false;
    sum += PyLong_AsUnsignedLongLong(version.get());
    if (PyErr_Occurred() != nullptr) return false;
  }
  return true;
}

PyObject* version_of_weights(PyObject* self, PyObject*) {
  unsigned long long sum = 0;
  return add_versions(path_of(self), sum) ? PyLong_FromUnsignedLongLong(sum) : nullptr;
}

bool enter(StepPath* self) {
  self->is_in_step = self->was_ended = 0;
  if (self->is_off != 0) return true;
  self->between = calls_now() - self->calls_at_commit;
  if (self->is_usual == 0 || is_lost(self)) {
    if (!call<"_before_entry">(object(self))) return false;
    if (self->is_off != 0) return true;
  }
  if (!write(self, false)) return false;
  if (self->is_usual == 0 && !call<"_after_entry">(object(self))) return false;
  PyObject* name = interned<"require_forward_param_sync">();
  if (name == nullptr) return false;
  PyObject* attributes = self->members[kDdpAttributes];
  PyObject* gives = attributes != nullptr && PyDict_Check(attributes) != 0
                        ? PyDict_GetItemWithError(attributes, name)
                        : Py_True;
  const int gives_buffers =
      gives != nullptr ? PyObject_IsTrue(gives) : -(PyErr_Occurred() != nullptr);
  if (gives_buffers < 0) return false;
  self->gives_buffers = gives_buffers != 0 ? 1 : 0;
  if (!add_versions(self, self->weights_at_entry)) return false;
  self->calls_at_entry = calls_now();
  self->has_stepped = self->has_given = 0;
  self->is_in_step = 1;
  return true;
}

bool leave(StepPath* self) {
  const bool is_as_usual =
      self->is_usual != 0 && self->has_stepped != 0 && calls_now() != self->calls_at_entry;
  const bool is_recoverable = self->is_in_step != 0 && self->is_off == 0;
  if ((self->was_ended != 0 || (is_recoverable && !is_as_usual)) &&
      !call<"_check_step">(object(self))) {
    return false;
  }
  self->is_in_step = 0;
  ++self->committed;
  if (self->is_off != 0) return true;
  if (self->committed_at != 0) {
    *reinterpret_cast<volatile std::int64_t*>(self->committed_at) = self->committed;
  }
  self->calls_at_commit = calls_now();
  if (self->is_usual == 0 && !call<"_after_commit">(object(self))) return false;
  const int is_so = is_as_seen(self->members[kSettingsSeen]);
  return is_so > 0 || (is_so == 0 && call<"_note_settings">(object(self)));
}

// tensor.register_hook() without a handle to remove it again, which takes twice as long as the rest.
bool hook(StepPath* self, PyObject* tensor, PyObject* made_by) {
  const Owned ours = get<"_before_gradients">(object(self)), hooks = get<"_backward_hooks">(tensor);
  if (!ours || !hooks) return false;
  if (hooks.get() == Py_None) {
    const Owned add = get<"_register_hook_dict">(made_by);
    if (add) {
      const Owned dict(PyDict_New());
      return dict && PyDict_SetItem(dict.get(), own_hook, ours.get()) == 0 &&
             PyObject_SetAttr(tensor, interned<"_backward_hooks">(), dict.get()) == 0 &&
             Owned(PyObject_CallFunctionObjArgs(add.get(), tensor, nullptr));
    }
    if (PyErr_ExceptionMatches(PyExc_AttributeError) == 0) return false;
    PyErr_Clear();
  }
  return call<"register_hook">(tensor, ours.get()) != nullptr;
}

PyObject* hook_for_python(PyObject* self, PyObject* tensor) {
  const Owned made_by = get<"grad_fn">(tensor);
  if (!made_by || !hook(path_of(self), tensor, made_by.get())) return nullptr;
  Py_RETURN_NONE;
}

PyObject* after_forward(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  if (count != 3) {
    PyErr_SetString(PyExc_TypeError, "a forward hook is given a module, its input and its output");
    return nullptr;
  }
  StepPath* path = path_of(self);
  if (path->is_in_step == 0) Py_RETURN_NONE;
  PyObject* output = arguments[2];
  if (is_just_tensor(output)) {
    const Owned made_by = get<"grad_fn">(output);
    if (!made_by) return nullptr;
    if (made_by.get() != Py_None) {
      path->has_given = 0;
      if (!hook(path, output, made_by.get())) return nullptr;
      Py_RETURN_NONE;
    }
  }
  return call<"_after_forward_of">(self, output).release();
}

// Before the first of them is given to the other ranks.
PyObject* before_gradients(PyObject* self, PyObject*) {
  StepPath* path = path_of(self);
  if (path->has_given != 0 || path->is_in_step == 0 || path->is_off != 0) Py_RETURN_NONE;
  if (is_lost(path) && path->has_stepped == 0) {
    path->was_ended = 1;
    PyErr_SetString(PyExc_ConnectionError,
                    "a rank was lost in this step, which is made again");  // without its rest
    return nullptr;
  }
  if (path->is_usual == 0) {
    if (!call<"_before_first_gradients">(self)) return nullptr;
    if (path->is_off != 0) Py_RETURN_NONE;
  }
  path->has_given = 1;
  if (!write(path, true)) return nullptr;
  Py_RETURN_NONE;
}

PyObject* after_step(PyObject* self, PyObject* const*, Py_ssize_t) {
  path_of(self)->has_stepped = 1;
  Py_RETURN_NONE;
}

PyObject* step_of(PyObject* self, PyObject*);
PyObject* given_of(PyObject* self, PyObject* source);

int traverse_path(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  for (PyObject* each : path_of(self)->members) Py_VISIT(each);
  return 0;
}

int clear_path(PyObject* self) {
  for (PyObject*& each : path_of(self)->members) Py_CLEAR(each);
  return 0;
}

void free_path(PyObject* self) {
  PyObject_GC_UnTrack(self);
  clear_path(self);
  free_object(self);
}

PyMethodDef path_methods[] = {
    {"step", step_of, METH_NOARGS,
     "The block is one step of the optimizer, which is made again if a rank dies in it."},
    {"_given", given_of, METH_O, "An iterator over these batches, each until a step is committed."},
    {"_hook", hook_for_python, METH_O, "Has _before_gradients() called for the tensor's gradient."},
    {"_after_forward", method(after_forward), METH_FASTCALL, nullptr},
    {"_before_gradients", before_gradients, METH_O, nullptr},
    {"_after_step", method(after_step), METH_FASTCALL, nullptr},
    {"_version_of_weights", version_of_weights, METH_NOARGS, nullptr},
    {}};

constexpr Py_ssize_t at(Member member) {
  return static_cast<Py_ssize_t>(offsetof(StepPath, members) + member * sizeof(PyObject*));
}
PyMemberDef path_members[] = {
    {"_is_off", T_BOOL, offsetof(StepPath, is_off), 0, nullptr},
    {"_is_usual", T_BOOL, offsetof(StepPath, is_usual), 0, nullptr},
    {"_is_in_step", T_BOOL, offsetof(StepPath, is_in_step), 0, nullptr},
    {"_has_stepped", T_BOOL, offsetof(StepPath, has_stepped), 0, nullptr},
    {"_has_given", T_BOOL, offsetof(StepPath, has_given), 0, nullptr},
    {"_was_ended", T_BOOL, offsetof(StepPath, was_ended), 0, nullptr},
    {"_again", T_BOOL, offsetof(StepPath, again), 0, nullptr},
    {"_gives_buffers", T_BOOL, offsetof(StepPath, gives_buffers), 0, nullptr},
    {"_has_noted", T_BOOL, offsetof(StepPath, has_noted), 0, nullptr},
    {"_has_noted_given", T_BOOL, offsetof(StepPath, has_noted_given), 0, nullptr},
    {"committed", T_LONGLONG, offsetof(StepPath, committed), 0, nullptr},
    {"_generation", T_LONGLONG, offsetof(StepPath, generation), 0, nullptr},
    {"_epoch", T_LONGLONG, offsetof(StepPath, epoch), 0, nullptr},
    {"_loop", T_LONGLONG, offsetof(StepPath, loop), 0, nullptr},
    {"_steps", T_LONGLONG, offsetof(StepPath, steps), 0, nullptr},
    {"_calls_at_commit", T_ULONGLONG, offsetof(StepPath, calls_at_commit), 0, nullptr},
    {"_calls_at_entry", T_ULONGLONG, offsetof(StepPath, calls_at_entry), 0, nullptr},
    {"_between", T_ULONGLONG, offsetof(StepPath, between), 0, nullptr},
    {"_weights_at_entry", T_ULONGLONG, offsetof(StepPath, weights_at_entry), 0, nullptr},
    {"_mirror_at", T_ULONGLONG, offsetof(StepPath, mirror_at), 0, nullptr},
    {"_noted_at", T_ULONGLONG, offsetof(StepPath, noted_at), 0, nullptr},
    {"_given_at", T_ULONGLONG, offsetof(StepPath, given_at), 0, nullptr},
    {"_wanted_at", T_ULONGLONG, offsetof(StepPath, wanted_at), 0, nullptr},
    {"_committed_at", T_ULONGLONG, offsetof(StepPath, committed_at), 0, nullptr},
    {"_generators_seen", T_OBJECT, at(kGeneratorsSeen), 0, nullptr},
    {"_buffers_seen", T_OBJECT, at(kBuffersSeen), 0, nullptr},
    {"_settings_seen", T_OBJECT, at(kSettingsSeen), 0, nullptr},
    {"_generator_blocks", T_OBJECT, at(kGeneratorBlocks), 0, nullptr},
    {"_entry_blocks", T_OBJECT, at(kEntryBlocks), 0, nullptr},
    {"_effect_blocks", T_OBJECT, at(kEffectBlocks), 0, nullptr},
    {"_entry_text", T_OBJECT, at(kEntryText), 0, nullptr},
    {"_effect_text", T_OBJECT, at(kEffectText), 0, nullptr},
    {"_states", T_OBJECT, at(kStates), 0, nullptr},
    {"_of_processes", T_OBJECT, at(kOfProcesses), 0, nullptr},
    {"_ddp_attributes", T_OBJECT, at(kDdpAttributes), 0, nullptr},
    {"_parameters", T_OBJECT, at(kParameters), 0, nullptr},
    {"_version_blocks", T_OBJECT, at(kVersionBlocks), 0, nullptr},
    {}};
PyType_Slot path_slots[] = {{Py_tp_doc, slot("A step of a training as it usually is.")},
                            {Py_tp_dealloc, slot(free_path)},
                            {Py_tp_traverse, slot(traverse_path)},
                            {Py_tp_clear, slot(clear_path)},
                            {Py_tp_methods, path_methods},
                            {Py_tp_members, path_members},
                            {}};
PyType_Spec path_spec{"ddprun.in_place.StepPath", sizeof(StepPath), 0,
                      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, path_slots};

// ---- what holds a StepPath

template <typename T, PyObject* T::*... kMembers>
int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  for (PyObject* each : {reinterpret_cast<T*>(self)->*kMembers...}) Py_VISIT(each);
  return 0;
}

// No tp_clear: of a circle through this one, StepPath's and those of Python's containers are enough.
template <typename T, PyObject* T::*... kMembers>
void free_held(PyObject* self) {
  PyObject_GC_UnTrack(self);
  for (PyObject* each : {reinterpret_cast<T*>(self)->*kMembers...}) Py_XDECREF(each);
  free_object(self);
}

// ---- what job.step() returns

struct Step {
  PyObject_HEAD PyObject* path;
  char is_committed;  // after the block: 0 if the step is made again
};

PyObject* enter_step(PyObject* self, PyObject*) {
  auto* step = reinterpret_cast<Step*>(self);
  step->is_committed = 0;
  return enter(path_of(step->path)) ? owned(self).release() : nullptr;
}

PyObject* exit_step(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
  auto* step = reinterpret_cast<Step*>(self);
  if (count != 3) {
    PyErr_SetString(PyExc_TypeError, "__exit__() takes three arguments");
    return nullptr;
  }
  if (arguments[0] == Py_None) {
    if (!leave(path_of(step->path))) return nullptr;
    step->is_committed = 1;
    Py_RETURN_FALSE;
  }
  const Owned result = call<"_fail">(step->path, arguments[1]);
  const int is_mended = result ? PyObject_IsTrue(result.get()) : -1;
  if (is_mended < 0) return nullptr;
  step->is_committed = is_mended != 0 && path_of(step->path)->again == 0 ? 1 : 0;
  return PyBool_FromLong(is_mended);
}

PyMethodDef step_methods[] = {{"__enter__", enter_step, METH_NOARGS, nullptr},
                              {"__exit__", method(exit_step), METH_FASTCALL, nullptr},
                              {}};
PyMemberDef step_members[] = {{"committed", T_BOOL, offsetof(Step, is_committed), 0, nullptr}, {}};
PyType_Slot step_slots[] = {{Py_tp_doc, slot("What job.step() returns.")},
                            {Py_tp_dealloc, slot(free_held<Step, &Step::path>)},
                            {Py_tp_traverse, slot(traverse<Step, &Step::path>)},
                            {Py_tp_methods, step_methods},
                            {Py_tp_members, step_members},
                            {}};
PyType_Spec step_spec{"ddprun.in_place.Step", sizeof(Step), 0,
                      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                      step_slots};

PyObject* step_of(PyObject* self, PyObject*) {
  if (path_of(self)->is_off != 0) return get<"_counted_step">(self).release();
  PyObject* made = PyType_GenericAlloc(step_type, 0);
  if (made != nullptr) reinterpret_cast<Step*>(made)->path = owned(self).release();
  return made;
}

// ---- what goes through the batches of a loop

struct Given {
  PyObject_HEAD PyObject* path;
  PyObject *source, *batch;
  PyObject* versions;  // of the batch, when it was given
  long long done;      // steps, when it was given
};

bool note(StepPath* self) {
  const int is_so = is_as_seen(self->members[kGeneratorsSeen]);
  const Blocks* blocks = as_blocks(self->members[kGeneratorBlocks]);
  if (is_so < 0) return false;
  if (is_so == 0 || blocks == nullptr || self->noted_at == 0) {
    if (!call<"_note">(object(self))) return false;
  } else {
    copy_blocks(reinterpret_cast<char*>(self->noted_at), blocks_of(blocks));
    self->has_noted = 1;
  }
  PyObject* states = self->members[kStates];
  const bool has_states = states != nullptr && PyDict_Check(states) != 0 && PyDict_Size(states) > 0;
  if (!has_states && !has_any(self->members[kOfProcesses])) return true;
  PyObject* noted = has_states ? PyDict_Copy(states) : PyDict_New();
  if (noted == nullptr) return false;
  set_to(self->members[kOfProcesses], noted);
  return true;
}

// The random numbers when the program is given a batch: what it draws before its step is drawn again with the same batch.
bool note_given(StepPath* self) {
  const int is_so = is_as_seen(self->members[kGeneratorsSeen]);
  const Blocks* blocks = as_blocks(self->members[kGeneratorBlocks]);
  if (is_so < 0) return false;
  if (is_so == 0 || blocks == nullptr || self->given_at == 0) {
    return static_cast<bool>(call<"_note_given">(object(self)));
  }
  copy_blocks(reinterpret_cast<char*>(self->given_at), blocks_of(blocks));
  self->has_noted_given = 1;
  return true;
}

// The same batch, to a step that is made again.
PyObject* given_again(Given* self) {
  const Owned now = versions(self->batch);
  const int is_same = now ? PyObject_RichCompareBool(now.get(), self->versions, Py_EQ) : -1;
  if (is_same < 0) return nullptr;
  if (is_same == 0 && !call<"_refuse_batch">(self->path)) return nullptr;
  if (!call<"_restore_given">(self->path)) return nullptr;
  return copy_of(self->batch).release();
}

PyObject* next_given(PyObject* object_of_self) {
  auto* self = reinterpret_cast<Given*>(object_of_self);
  StepPath* path = path_of(self->path);
  if (self->batch != nullptr) {
    if (path->again != 0) {
      path->again = 0;
      return given_again(self);
    }
    if (path->committed != self->done + 1 && path->is_off == 0) {
      const Owned done(PyLong_FromLongLong(path->committed - self->done));
      if (!done || !call<"_refuse_steps">(self->path, done.get())) return nullptr;
    }
    ++path->steps;
    Py_CLEAR(self->versions);
    Py_CLEAR(self->batch);
  }
  if (path->is_off == 0 && !note(path)) return nullptr;
  Owned batch(PyIter_Next(self->source));
  if (!batch) return nullptr;  // there is none, or an exception
  Owned copy = copy_of(batch.get()), its_versions = versions(batch.get());
  if (!copy || !its_versions) return nullptr;
  if (path->is_off == 0 && !note_given(path)) return nullptr;
  self->done = path->committed;
  set_to(self->versions, its_versions.release());
  set_to(self->batch, batch.release());
  return copy.release();
}

PyObject* given_of(PyObject* self, PyObject* source) {
  if (PyIter_Check(source) == 0) {
    PyErr_SetString(PyExc_TypeError, "no iterator");
    return nullptr;
  }
  PyObject* made = PyType_GenericAlloc(given_type, 0);
  if (made != nullptr) {
    reinterpret_cast<Given*>(made)->path = owned(self).release();
    reinterpret_cast<Given*>(made)->source = owned(source).release();
  }
  return made;
}

PyType_Slot given_slots[] = {
    {Py_tp_doc, slot("Batches, each until a step is committed with it.")},
    {Py_tp_dealloc,
     slot(free_held<Given, &Given::path, &Given::source, &Given::batch, &Given::versions>)},
    {Py_tp_traverse,
     slot(traverse<Given, &Given::path, &Given::source, &Given::batch, &Given::versions>)},
    {Py_tp_iter, slot(PyObject_SelfIter)},
    {Py_tp_iternext, slot(next_given)},
    {}};
PyType_Spec given_spec{"ddprun.in_place.Given", sizeof(Given), 0,
                       Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
                       given_slots};

PyMethodDef functions[] = {
    {"copy_of", copy_of_for_python, METH_O,
     "A batch's containers anew, with the same tensors: a step that puts another one into a list "
     "does\n"
     "not change the batch."},
    {"versions", versions_for_python, METH_O, "Change when a tensor of the batch is written into."},
    {"write_record", write_record_for_python, METH_VARARGS,
     "(address of the mirror, place, number, text, blocks). False: there is no room for it."},
    {}};
PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                          "ddprun.in_place",
                          nullptr,
                          -1,
                          functions,
                          nullptr,
                          nullptr,
                          nullptr,
                          nullptr};

bool make_type(PyObject* module, PyTypeObject*& type, PyType_Spec& spec) {
  if (type == nullptr) type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
  const std::string_view name = spec.name;
  return type != nullptr &&
         PyObject_SetAttrString(module, &name[name.rfind('.') + 1], object(type)) == 0;
}

bool make_all(PyObject* module) {
  if (own_hook == nullptr) own_hook = PyLong_FromLong(-1);
  if (own_hook == nullptr) return false;
  for (int i = 0; i < kKinds; ++i) {
    if (PyModule_AddIntConstant(module, kKindNames[i], i) != 0) return false;
  }
  return make_type(module, blocks_type, blocks_spec) && make_type(module, seen_type, seen_spec) &&
         make_type(module, given_type, given_spec) && make_type(module, step_type, step_spec) &&
         make_type(module, path_type, path_spec);
}

}  // namespace

// For ctypes: what a Python program whose ranks are replaced in place loads before LibTorch. Needs none of it.
extern "C" {

// A checksum: two memories that differ in any 32 bits in a row have different sums.
__attribute__((visibility("default"))) std::uint32_t ddprun_stream_sum(const char* bytes,
                                                                       std::size_t size) {
  return ddprun::stream_sum({bytes, size});
}

// The module with all this; `tensor` is torch.Tensor. Through ctypes.PyDLL.
PyObject* ddprun_in_place_types(PyObject* tensor) {
  if (PyType_Check(tensor) == 0) {
    PyErr_SetString(PyExc_TypeError, "torch.Tensor is no type");
    return nullptr;
  }
  Owned module(PyModule_Create(&definition));
  if (!module || !make_all(module.get())) return nullptr;
  Py_INCREF(tensor);
  Py_XDECREF(object(tensor_type));
  tensor_type = reinterpret_cast<PyTypeObject*>(tensor);
  return module.release();
}

// The rest is for any thread, and needs no GIL.

// Non-zero: ddprun_interrupt_gloo() ends the calls that wait. Call it when LibTorch is loaded.
int ddprun_can_interrupt_gloo() { return ddprun::detail::can_interrupt_gloo() ? 1 : 0; }

void ddprun_interrupt_gloo(const char* why) { ddprun::detail::interrupt_gloo(why); }

// The error of such a call comes through all of LibTorch.
void ddprun_read_unwind_tables_ahead() { ddprun::read_unwind_tables_ahead(); }

// Grows with every call over Gloo that this process takes part in.
const std::uint64_t* ddprun_gloo_calls() { return ddprun::detail::gloo_calls(); }
}
