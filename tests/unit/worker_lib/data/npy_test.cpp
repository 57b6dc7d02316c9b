// The files of NumPy itself are compared in tests/compat/data_files_python.py; here is what NumPy
// never writes.
#include "ddprun/npy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "tests/unit/worker_lib/damaged_file.h"
#include "tests/unit/worker_lib/temp_folder.h"

namespace ddprun {
namespace {

using testing::ElementsAre;

std::string npy(const std::string& header, const std::string& data, char version = 1) {
  std::string bytes = "\x93NUMPY";
  bytes += {version, '\0', static_cast<char>(header.size()), static_cast<char>(header.size() >> 8)};
  if (version > 1) bytes += {'\0', '\0'};
  return bytes + header + data;
}

const char* const kPair = "{'descr': '<i2', 'fortran_order': False, 'shape': (2,), }";

class Npy : public testing::Test {
 protected:
  Result<NpyArray> read_bytes(const std::string& bytes) {
    test::write(path_, bytes);
    return read_npy(path_);
  }
  void expect_error(const std::string& bytes, const std::string& said) {
    test::expect_damaged(read_bytes(bytes), path_, said);
  }

  test::TempFolder folder_;
  std::string path_ = folder_.file("x.npy");
};

TEST_F(Npy, ReadsEveryVersionAndBothByteOrders) {
  const std::string data("\x01\x02\x03\x04", 4);
  for (const char version : {1, 2, 3}) {
    const auto array = read_bytes(npy(kPair, data, version));
    ASSERT_TRUE(array) << array.error().message;
    EXPECT_EQ(array->kind, 'i');
    EXPECT_EQ(array->element_size, 2);
    EXPECT_THAT(array->shape, ElementsAre(2));
    EXPECT_THAT(array->bytes, ElementsAre(1, 2, 3, 4));
  }
  const auto big = read_bytes(npy(R"({"shape":(2L,),"fortran_order":True,"descr":">i2"})", data));
  ASSERT_TRUE(big) << big.error().message;
  EXPECT_THAT(big->bytes, ElementsAre(2, 1, 4, 3));
  EXPECT_TRUE(big->is_fortran_order);
}

TEST_F(Npy, CutOffAnywhereIsAnError) {
  const std::string whole = npy(kPair, "abcd");
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(read_bytes(whole.substr(0, size))) << size << " bytes";
  }
  expect_error(whole.substr(0, whole.size() - 1),
               "promises 4 bytes of data from byte 67 on, there "
               "are 3");
  expect_error(whole + "x", "there are 5");
}

TEST_F(Npy, WhatCannotBeReadIsSaidWithItsPlace) {
  expect_error("PK\x03\x04 an archive", "a .npz is a zip archive");
  expect_error(npy(kPair, "abcd", 4), "of version 4");
  expect_error(npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", "a"),
               "an array of Python objects");
  expect_error(npy("{'descr': '<U5', 'fortran_order': False, 'shape': (1,)}", "a"), "type '<U5'");
  expect_error(npy("{'descr': '<f16', 'fortran_order': False, 'shape': (1,)}", "a"), "type '<f16'");
  expect_error(npy("{'descr': [('a', '<i4')], 'fortran_order': False, 'shape': (1,)}", "a"),
               "a structured array");
  expect_error(npy("{'descr': '<i4', 'shape': (1,)}", "a"), "is missing");
  expect_error(npy("{'descr': '<i4', 'fortran_order': Maybe, 'shape': (1,)}", "a"),
               "at byte 44: True or False is expected");
  expect_error(npy("{'descr': '<i4', 'fortran_order': False, 'shape': (-1,)}", "a"),
               "a dimension is expected");
  expect_error(npy("{'descr': '<i4', 'fortran_order': False, 'shape': (1", "a"), "is expected");
  expect_error(npy("{'descr': '<i4', 'colour': 1}", "a"), "unknown key 'colour'");
  expect_error(npy("nothing", "a"), "at byte 10: a '{' is expected");
}

TEST_F(Npy, AnImpossibleShapeAllocatesNothing) {
  const std::string large = "4611686018427387904";
  expect_error(npy("{'descr': '<f8', 'fortran_order': False, 'shape': (" + large + ", 8)}", "a"),
               "more elements than there is memory");
  expect_error(npy("{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,)}", "a"),
               "promises 8000000000000 bytes");
}

TEST_F(Npy, WritesWhatItReads) {
  NpyArray array{.kind = 'u', .element_size = 1, .shape = {2, 0, 3}, .is_fortran_order = true};
  ASSERT_TRUE(write_npy(path_, array));
  const auto empty = read_npy(path_);
  ASSERT_TRUE(empty) << empty.error().message;
  EXPECT_THAT(empty->shape, ElementsAre(2, 0, 3));
  array.shape = {};
  EXPECT_FALSE(write_npy(path_, array)) << "one element is missing";
  array.bytes = {7};
  ASSERT_TRUE(write_npy(path_, array));
  const std::string bytes = test::read(path_);
  EXPECT_EQ((bytes.size() - 1) % 64, 0u) << "data is aligned";
  const auto scalar = read_npy(path_);
  ASSERT_TRUE(scalar) << scalar.error().message;
  EXPECT_THAT(scalar->bytes, ElementsAre(7));
}

}  // namespace
}  // namespace ddprun
