// What --rdzv-endpoint and --rdzv-conf mean under --rdzv-backend=etcd (and etcd-v2, which is the
// same here, because etcd's v2 API no longer exists). Keys have the spellings of both of torchrun's
// etcd backends. Only read_etcd() reads a file, the one with the password.
#pragma once

#include <vector>

#include "launcher/plan/rendezvous_options.h"
#include "launcher/settings/settings.h"
#include "rendezvous/common/result.h"
#include "rendezvous/etcd/etcd_spec.h"

namespace ddprun::cli {

// "host1:2379,host2,[::1]:2379"
Result<std::vector<rdzv::Endpoint>> read_etcd_endpoints(const ResolvedOption& endpoint);

Result<rdzv::EtcdSpec> read_etcd(const Settings& settings, const Rendezvous& rendezvous);

}  // namespace ddprun::cli
