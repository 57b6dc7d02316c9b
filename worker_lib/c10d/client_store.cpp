#include "worker_lib/c10d/client_store.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <string_view>
#include <utility>

namespace ddprun {
namespace {

using Bytes = ClientStore::Bytes;

// The value, or the error as LibTorch's own store would throw it.
template <typename T>
T or_throw(Result<T> result) {
  if (!result) C10_THROW_ERROR(DistStoreError, result.error().to_string());
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

std::string_view view(const Bytes& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Bytes bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

}  // namespace

ClientStore::ClientStore(std::unique_ptr<rdzv::StoreClient> client,
                         c10::intrusive_ptr<c10d::Store> kept)
    : Store(client->timeout()), client_(std::move(client)), kept_(std::move(kept)) {}

c10::intrusive_ptr<c10d::Store> ClientStore::clone() {
  return c10::make_intrusive<ClientStore>(or_throw(client_->clone()), kept_);
}

c10::intrusive_ptr<c10d::Store> ClientStore::clone_within(std::chrono::milliseconds timeout) const {
  return c10::make_intrusive<ClientStore>(
      or_throw(rdzv::StoreClient::connect(
          {.server = client_->server(), .connect_timeout = timeout, .timeout = timeout})),
      kept_);
}

void ClientStore::set(const std::string& key, const Bytes& value) {
  or_throw(client_->set(key, view(value)));
}

Bytes ClientStore::compareSet(const std::string& key, const Bytes& expected, const Bytes& desired) {
  return bytes_of(or_throw(client_->compare_set(key, view(expected), view(desired))));
}

Bytes ClientStore::get(const std::string& key) { return bytes_of(or_throw(client_->get(key))); }

std::int64_t ClientStore::add(const std::string& key, std::int64_t value) {
  return or_throw(client_->add(key, value));
}

bool ClientStore::deleteKey(const std::string& key) { return or_throw(client_->delete_key(key)); }

bool ClientStore::check(const Keys& keys) { return or_throw(client_->check(keys)); }

std::int64_t ClientStore::getNumKeys() { return or_throw(client_->num_keys()); }

void ClientStore::wait(const Keys& keys) { or_throw(client_->wait(keys)); }

void ClientStore::wait(const Keys& keys, const std::chrono::milliseconds& timeout) {
  or_throw(client_->wait(keys, timeout));
}

void ClientStore::setTimeout(const std::chrono::milliseconds& timeout) {
  Store::setTimeout(timeout);
  client_->set_timeout(timeout);
}

void ClientStore::append(const std::string& key, const Bytes& value) {
  or_throw(client_->append(key, view(value)));
}

std::vector<Bytes> ClientStore::multiGet(const Keys& keys) {
  std::vector<Bytes> values;
  for (const std::string& value : or_throw(client_->multi_get(keys))) {
    values.push_back(bytes_of(value));
  }
  return values;
}

void ClientStore::multiSet(const Keys& keys, const std::vector<Bytes>& values) {
  std::vector<std::string> texts(values.size());
  std::ranges::transform(values, texts.begin(), view);
  or_throw(client_->multi_set(keys, texts));
}

}  // namespace ddprun
