#include "rendezvous/leader/munge.h"

#include <dlfcn.h>
#include <sys/types.h>

#include <cstdlib>
#include <optional>
#include <utility>

namespace ddprun::rdzv {
namespace {

// As libmunge's documented ABI declares it (munge.3, munge_ctx.3).
using Context = struct munge_ctx*;
constexpr int kSuccess = 0;
constexpr int kUidRestriction = 9;  // MUNGE_OPT_UID_RESTRICTION

struct Library {
  std::shared_ptr<void> handle;
  Context (*make_context)() = nullptr;
  void (*destroy_context)(Context) = nullptr;
  int (*set)(Context, int, ...) = nullptr;
  int (*encode)(char**, Context, const void*, int) = nullptr;
  int (*decode)(const char*, Context, void**, int*, uid_t*, gid_t*) = nullptr;
  const char* (*text_of_error)(int) = nullptr;
  const char* (*text_of_context)(Context) = nullptr;
};

template <typename Function>
bool load(const Library& library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(::dlsym(library.handle.get(), name));
  return function != nullptr;
}

Result<Library> load_library(const std::string& name) {
  Library library;
  if (void* const handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    library.handle = std::shared_ptr<void>(handle, ::dlclose);
  } else {
    return fail(ErrorCode::kNotFound, "there is no " + name + " here");
  }
  const bool is_whole = load(library, "munge_ctx_create", library.make_context) &&
                        load(library, "munge_ctx_destroy", library.destroy_context) &&
                        load(library, "munge_ctx_set", library.set) &&
                        load(library, "munge_encode", library.encode) &&
                        load(library, "munge_decode", library.decode) &&
                        load(library, "munge_strerror", library.text_of_error) &&
                        load(library, "munge_ctx_strerror", library.text_of_context);
  if (!is_whole) return fail(ErrorCode::kNotFound, name + " is another library than MUNGE's");
  return library;
}

struct Credential {
  std::string contents;
  uid_t made_by = 0;
};

class LoadedMunge final : public Munge {
 public:
  explicit LoadedMunge(Library library) : library_(std::move(library)) {}

  // munged knows this process by its user id, which in a container may be another one than ours.
  Result<void> find_user() {
    const auto credential = encode("");
    if (!credential) return fail(credential.error());
    const auto read = read_credential(*credential);
    if (!read) return fail(read.error());
    user_ = read->made_by;
    return {};
  }

  Result<std::string> encode(std::string_view contents) const override {
    const auto context = make_context();
    if (user_) library_.set(context.get(), kUidRestriction, *user_);
    char* text = nullptr;
    const int code =
        library_.encode(&text, context.get(), contents.data(), static_cast<int>(contents.size()));
    const std::unique_ptr<char, void (*)(void*)> owner(text, std::free);
    if (code != kSuccess) return fail(error(code, context.get()));
    return std::string(text);
  }

  Result<std::string> decode(const std::string& credential) const override {
    auto read = read_credential(credential);
    if (!read) return fail(std::move(read.error()));
    if (read->made_by != user_) {
      return fail(ErrorCode::kPermissionDenied,
                  "it is of user " + std::to_string(read->made_by) + ", not of this job's user");
    }
    return std::move(read->contents);
  }

 private:
  using ContextPtr = std::unique_ptr<munge_ctx, void (*)(Context)>;
  ContextPtr make_context() const { return {library_.make_context(), library_.destroy_context}; }

  Result<Credential> read_credential(const std::string& text) const {
    const auto context = make_context();
    void* contents = nullptr;
    int size = 0;
    uid_t user = 0;
    gid_t group = 0;
    const int code = library_.decode(text.c_str(), context.get(), &contents, &size, &user, &group);
    // munge_decode() also fills it for some credentials that it refuses.
    const std::unique_ptr<void, void (*)(void*)> owner(contents, std::free);
    if (code != kSuccess) return fail(error(code, context.get()));
    return Credential{{static_cast<const char*>(contents), static_cast<std::size_t>(size)}, user};
  }

  Error error(int code, Context context) const {
    const char* const more = library_.text_of_context(context);
    return {ErrorCode::kIo,
            "munge: " + std::string(more != nullptr ? more : library_.text_of_error(code)),
            {}};
  }

  const Library library_;
  std::optional<uid_t> user_;  // nullopt: not known yet
};

}  // namespace

Result<std::shared_ptr<const Munge>> Munge::find(const std::string& library) {
  auto loaded = load_library(library);
  if (!loaded) return fail(std::move(loaded.error()));
  auto munge = std::make_shared<LoadedMunge>(*std::move(loaded));
  if (auto found = munge->find_user(); !found) return fail(std::move(found.error()));
  return munge;
}

}  // namespace ddprun::rdzv
