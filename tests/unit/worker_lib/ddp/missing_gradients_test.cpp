#include "worker_lib/ddp/missing_gradients.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddprun {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// As PyTorch 2.11 words it.
constexpr const char* kMessage =
    "Expected to have finished reduction in the prior iteration before starting a new one. …\n"
    "Parameter indices which did not receive grad for rank 1: 0 3\n"
    " In addition, you can set the environment variable TORCH_DISTRIBUTED_DEBUG …";

TEST(MissingGradients, AreFoundInTheTextOfTheReducer) {
  EXPECT_THAT(indices_without_gradient(kMessage, 4), ElementsAre(0, 3));
}

TEST(MissingGradients, AreNotKnownFromAnotherText) {
  for (const char* message :
       {"", "some gradients are missing: 0 3", "parameters which did not receive grad for rank 1",
        "parameters which did not receive grad for rank 1: fc1.weight"}) {
    EXPECT_THAT(indices_without_gradient(message, 4), IsEmpty()) << message;
  }
}

TEST(MissingGradients, AreNotKnownFromAnIndexOfNoParameter) {
  EXPECT_THAT(indices_without_gradient(kMessage, 3), IsEmpty());
}

}  // namespace
}  // namespace ddprun
