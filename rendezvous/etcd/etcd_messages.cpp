#include "rendezvous/etcd/etcd_messages.h"

#include <boost/json.hpp>

#include "rendezvous/common/base64.h"
#include "rendezvous/common/parse_number.h"

namespace ddprun::rdzv::wire {
namespace {

namespace json = boost::json;

json::string in_base64(std::string_view bytes) { return json::string(to_base64(bytes)); }
json::string as_text(std::int64_t number) { return json::string(std::to_string(number)); }

Result<json::value> parse(std::string_view text) {
  boost::system::error_code ec;
  json::value value = json::parse(text, ec);
  if (!ec && value.is_object()) return value;
  return fail(ErrorCode::kProtocol, "what answers is no etcd gateway: it sends no JSON object");
}

tl::unexpected<Error> no_such_answer() {
  return fail(ErrorCode::kProtocol, "what answers is no etcd gateway: a field is missing or wrong");
}

// A field of an object; null if there is none, or if `value` is no object.
const json::value& in(const json::value& value, std::string_view name) {
  static const json::value kNone;
  const json::object* object = value.if_object();
  const json::value* field = object == nullptr ? nullptr : object->if_contains(name);
  return field == nullptr ? kNone : *field;
}

bool is_true(const json::value& value) { return value.is_bool() && value.as_bool(); }

// 0 if the field is left out.
std::optional<std::int64_t> number_in(const json::value& value, std::string_view name) {
  const json::value& field = in(value, name);
  if (field.is_null()) return 0;
  if (field.is_int64()) return field.as_int64();
  if (!field.is_string()) return std::nullopt;
  return parse_number<std::int64_t>(std::string_view(field.as_string()));
}

std::string string_in(const json::value& value, std::string_view name) {
  const json::string* text = in(value, name).if_string();
  return text == nullptr ? "" : std::string(text->data(), text->size());
}

std::int64_t revision_in(const json::value& value) {
  return number_in(in(value, "header"), "revision").value_or(0);
}

std::optional<EtcdKeyValue> entry_of(const json::value& entry) {
  const auto create = number_in(entry, "create_revision");
  const auto mod = number_in(entry, "mod_revision");
  const auto lease = number_in(entry, "lease");
  auto key = from_base64(string_in(entry, "key"));
  auto value = from_base64(string_in(entry, "value"));
  if (!entry.is_object() || !create || !mod || !lease || !key || !value) return std::nullopt;
  return EtcdKeyValue{*std::move(key), *std::move(value), *create, *mod, *lease};
}

json::object range_of(const std::string& key) {
  return {{"requestRange", json::object{{"key", in_base64(key)}}}};
}

}  // namespace

// ---- what is asked

std::string etcd_txn(const EtcdTxn& txn) {
  json::array compares;
  for (const EtcdCompare& each : txn.compares) {
    const bool is_create = each.what == EtcdCompare::What::kCreateRevision;
    compares.push_back(
        json::object{{"result", "EQUAL"},
                     {"target", is_create ? "CREATE" : "MOD"},
                     {"key", in_base64(each.key)},
                     {is_create ? "createRevision" : "modRevision", as_text(each.revision)}});
  }
  json::array success;
  for (const EtcdPut& each : txn.puts) {
    success.push_back(json::object{{"requestPut", json::object{{"key", in_base64(each.key)},
                                                               {"value", in_base64(each.value)},
                                                               {"lease", as_text(each.lease)}}}});
  }
  for (const std::string& key : txn.deletes) {
    success.push_back(json::object{{"requestDeleteRange", json::object{{"key", in_base64(key)}}}});
  }
  json::array failure;
  for (const std::string& key : txn.reads) {
    success.push_back(range_of(key));
    failure.push_back(range_of(key));
  }
  return json::serialize(
      json::object{{"compare", compares}, {"success", success}, {"failure", failure}});
}

std::string etcd_grant(std::int64_t seconds) {
  return json::serialize(json::object{{"TTL", as_text(seconds)}});
}

std::string etcd_lease(std::int64_t lease) {
  return json::serialize(json::object{{"ID", as_text(lease)}});
}

std::string etcd_watch(std::string_view key, std::int64_t from_revision) {
  return json::serialize(
      json::object{{"create_request", json::object{{"key", in_base64(key)},
                                                   {"start_revision", as_text(from_revision)}}}});
}

std::string etcd_authenticate(std::string_view user, std::string_view password) {
  return json::serialize(
      json::object{{"name", json::string_view(user)}, {"password", json::string_view(password)}});
}

// ---- what it answers

Result<EtcdTxnAnswer> read_etcd_txn(std::string_view body, const EtcdTxn& txn) {
  const auto parsed = parse(body);
  if (!parsed) return fail(parsed.error());
  EtcdTxnAnswer answer;
  answer.revision = revision_in(*parsed);
  answer.has_succeeded = is_true(in(*parsed, "succeeded"));
  const std::size_t before = answer.has_succeeded ? txn.puts.size() + txn.deletes.size() : 0;
  const json::array* responses = in(*parsed, "responses").if_array();
  const std::size_t count = responses == nullptr ? 0 : responses->size();
  if (answer.revision <= 0 || count != before + txn.reads.size()) return no_such_answer();
  for (std::size_t i = before; i < count; ++i) {
    const json::value& range = in((*responses)[i], "response_range");
    if (!range.is_object()) return no_such_answer();
    const json::array* entries = in(range, "kvs").if_array();
    if (entries == nullptr || entries->empty()) {
      answer.reads.emplace_back();
      continue;
    }
    auto read = entry_of(entries->front());
    if (!read || read->create_revision <= 0) return no_such_answer();
    answer.reads.push_back(*std::move(read));
  }
  return answer;
}

Result<EtcdLease> read_etcd_lease(std::string_view body) {
  const auto parsed = parse(body);
  if (!parsed) return fail(parsed.error());
  const json::value& result = in(*parsed, "result");  // keepalive is a stream too
  const json::value& object = result.is_object() ? result : *parsed;
  const auto lease = number_in(object, "ID");
  const auto seconds = number_in(object, "TTL");
  if (!lease || !seconds || *lease == 0) return no_such_answer();
  return EtcdLease{*lease, *seconds};
}

Result<EtcdWatchAnswer> read_etcd_watch(std::string_view line) {
  const auto parsed = parse(line);
  if (!parsed) return fail(parsed.error());
  const json::value& result = in(*parsed, "result");
  if (!result.is_object()) {
    const EtcdRefusal refusal = read_etcd_refusal(line);
    return fail(ErrorCode::kUnavailable, "etcd ends the watch: " + refusal.message);
  }
  EtcdWatchAnswer answer;
  answer.is_canceled = is_true(in(result, "canceled"));
  const json::array* events = in(result, "events").if_array();
  if (events == nullptr) return answer;
  for (const json::value& event : *events) {
    auto read = entry_of(in(event, "kv"));
    if (!read) return no_such_answer();
    answer.events.push_back({string_in(event, "type") == "DELETE", *std::move(read)});
  }
  return answer;
}

Result<std::string> read_etcd_token(std::string_view body) {
  const auto parsed = parse(body);
  if (!parsed) return fail(parsed.error());
  std::string token = string_in(*parsed, "token");
  if (token.empty()) return no_such_answer();
  return token;
}

EtcdRefusal read_etcd_refusal(std::string_view body) {
  EtcdRefusal refusal;
  const auto parsed = parse(body);
  if (parsed) {
    const json::value& inner = in(*parsed, "error");  // in a stream
    const json::value& object = inner.is_object() ? inner : *parsed;
    refusal.message = string_in(object, "message");
    for (const char* name : {"grpc_code", "code"}) {
      if (!in(object, name).is_null()) {
        refusal.code = static_cast<int>(number_in(object, name).value_or(-1));
      }
    }
  }
  if (refusal.message.empty()) {
    constexpr std::size_t kLongest = 200;
    refusal.message = std::string(body.substr(0, std::min(kLongest, body.find('\n'))));
  }
  return refusal;
}

}  // namespace ddprun::rdzv::wire
