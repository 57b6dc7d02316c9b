#include "launcher/plan/token_option.h"

#include "launcher/settings/values.h"
#include "rendezvous/leader/token.h"

namespace ddprun::cli {

TokenFile token_file(const Settings& settings, const RdzvConf& conf) {
  const Setting& option = settings[OptionId::kTokenFile];
  const std::string in_conf = text_of(conf, "token_file");
  const bool conf_counts_more =
      !in_conf.empty() && settings[OptionId::kRdzvConf].origin.source > option.origin.source;
  if (conf_counts_more) return {in_conf, OptionId::kRdzvConf};
  return {option.text, OptionId::kTokenFile};
}

Result<std::string> read_token(const Settings& settings, const RdzvConf& conf) {
  const TokenFile file = token_file(settings, conf);
  if (file.path.empty()) return {};
  auto token = rdzv::read_token(file.path);
  if (!token)
    return fail(usage_error(resolved(settings, file.named_by), token.error().to_string()));
  return token;
}

}  // namespace ddprun::cli
