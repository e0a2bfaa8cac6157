#include "io/weights/safetensors.h"

#include <array>

#include "io/files/json_guard.h"
#include "support.h"

namespace sluice {
namespace {

std::string file_of(const std::string& header, std::size_t data_bytes) {
  const std::uint64_t length = header.size();
  std::string bytes(reinterpret_cast<const char*>(&length), 8);
  bytes += header;
  for (std::size_t i = 0; i < data_bytes; ++i) bytes.push_back(static_cast<char>(i));
  return bytes;
}

void expect_refused(const std::string& path, const std::string& part) {
  auto model = SafeTensors::open(path);
  ASSERT_FALSE(model.ok()) << part;
  EXPECT_EQ(model.error().code, ErrorCode::bad_request);
  EXPECT_NE(model.error().message.find(part), std::string::npos) << model.error().message;
  EXPECT_EQ(model.error().message.find('\n'), std::string::npos);
}

TEST(SafeTensors, ReadsWhatItWrote) {
  const ScratchDir dir;
  std::vector<std::byte> a(2 * 3 * 4), b(5 * 2);
  fill(a, 1);
  fill(b, 2);
  {
    auto writer = SafeTensorsWriter::create(dir / "m.safetensors",
                                            {{"z.weight", TensorDtype::f32, {2, 3}},
                                             {"b", TensorDtype::bf16, {5}},
                                             {"none", TensorDtype::f32, {0, 7}},
                                             {"scalar", TensorDtype::u8, {}}},
                                            {{"format", "pt"}});
    ASSERT_TRUE(writer.ok()) << writer.error().message;
    ASSERT_TRUE(writer->write("z.weight", 0, std::span(a).first(8)).ok());
    ASSERT_TRUE(writer->write("z.weight", 8, std::span(a).subspan(8)).ok());
    ASSERT_TRUE(writer->write("b", 0, b).ok());
    ASSERT_TRUE(writer->write("none", 0, {}).ok());
    ASSERT_TRUE(writer->write("scalar", 0, std::span(a).first(1)).ok());
    EXPECT_FALSE(std::filesystem::exists(dir / "m.safetensors"));
    ASSERT_TRUE(writer->finish().ok());
  }
  auto model = SafeTensors::open(dir / "m.safetensors");
  ASSERT_TRUE(model.ok()) << model.error().message;
  EXPECT_EQ(model->entries().size(), 4u);
  const TensorEntry* z = model->find("z.weight");
  ASSERT_NE(z, nullptr);
  EXPECT_EQ(z->shape, (std::vector<std::uint64_t>{2, 3}));
  EXPECT_EQ(z->numel, 6u);
  EXPECT_EQ(to_dtype(z->dtype), Dtype::f32);
  std::vector<std::byte> back(a.size());
  ASSERT_TRUE(model->read(*z, 0, back).ok());
  EXPECT_EQ(back, a);
  back.resize(4);
  ASSERT_TRUE(model->read(*model->find("b"), 6, back).ok());
  EXPECT_TRUE(std::equal(back.begin(), back.end(), b.begin() + 6));
  EXPECT_EQ(model->find("none")->bytes, 0u);
  EXPECT_EQ(model->find("scalar")->numel, 1u);
  EXPECT_EQ(model->find("weight"), nullptr);
  EXPECT_FALSE(SafeTensorsWriter::create(dir / "x", {{"a", TensorDtype::u8, {1}}, {"a", TensorDtype::u8, {1}}}).ok());
  EXPECT_FALSE(SafeTensorsWriter::create(dir / "x", {{"a", TensorDtype::u8, {1ull << 40, 1ull << 40}}}).ok());
}

TEST(SafeTensors, RefusesBadHeaders) {
  const ScratchDir dir;
  const std::string path = dir / "m.safetensors";
  const auto refused = [&](const std::string& header, std::size_t bytes, const std::string& part) {
    write_text(path, file_of(header, bytes));
    expect_refused(path, part);
  };
  const auto entry = [](const std::string& name, const std::string& dtype, const std::string& shape,
                        const std::string& offsets) {
    return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}";
  };
  write_text(path, file_of("{" + entry("a", "F32", "[2]", "[0,8]") + "}", 8));
  ASSERT_TRUE(SafeTensors::open(path).ok());
  refused("{" + entry("a", "F32", "[2]", "[0,8]") + "," + entry("b", "F32", "[2]", "[4,12]") + "}", 12, "overlaps");
  refused("{" + entry("a", "F32", "[2]", "[0,8]") + "," + entry("b", "F32", "[2]", "[0,8]") + "}", 8, "overlaps");
  refused("{" + entry("a", "F32", "[1]", "[0,4]") + "," + entry("b", "F32", "[1]", "[8,12]") + "}", 12, "gap");
  refused("{" + entry("a", "F32", "[1]", "[4,8]") + "}", 8, "gap");
  refused("{" + entry("a", "F32", "[2]", "[0,8]") + "}", 9, "its tensors fill 8");
  refused("{" + entry("a", "F32", "[2]", "[0,8]") + "}", 7, "lies at [0, 8) of 7");
  refused("{" + entry("a", "F32", "[2]", "[8,0]") + "}", 8, "lies at");
  refused("{" + entry("a", "F32", "[3]", "[0,8]") + "}", 8, "8 bytes of data where dtype and shape ask for 12");
  refused("{" + entry("a", "F31", "[2]", "[0,8]") + "}", 8, "F31");
  refused("{" + entry("a", "F32", "[-2]", "[0,8]") + "}", 8, "shape");
  refused("{" + entry("a", "F32", "[2.0]", "[0,8]") + "}", 8, "shape");
  refused("{" + entry("a", "F32", "[2]", "[0,8,9]") + "}", 8, "data_offsets");
  refused("{" + entry("a", "F32", "[2]", "[0,-8]") + "}", 8, "data_offsets");
  refused("{" + entry("a", "F32", "[8589934592,8589934592]", "[0,0]") + "}", 0, "overflows");
  refused("{" + entry("a", "F64", "[4611686018427387904]", "[0,0]") + "}", 0, "overflows");
  refused("{" + entry("a", "F32", "[18446744073709551616]", "[0,0]") + "}", 0, "shape");
  refused("{" + entry("a", "F32", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", "[0,4]") + "}", 4, "shape");
  refused("{" + entry("a", "F32", "[2]", "[0,8]") + "," + entry("a", "F32", "[2]", "[8,16]") + "}", 16, "twice");
  refused("{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "twice");
  refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", 0, "exactly");
  refused("{\"a\":[[[[[1]]]]]}", 0, "exactly");
  refused("{\"a\":1}", 0, "exactly");
  refused("{\"__metadata__\":{\"a\":1}}", 0, "not a string");
  refused("{\"__metadata__\":[]}", 0, "not an object");
  refused("{\"a\\n\\u0007b\":1}", 0, "'a??b'");
  refused("[]", 0, "begin with");
  refused(" {}", 0, "begin with");
  refused("{} x", 0, "not JSON");
  refused("{", 0, "not JSON");
  refused("{\"\xff\":1}", 0, "not JSON");
  refused("", 0, "begin with");
}

TEST(SafeTensors, RefusesBadFiles) {
  const ScratchDir dir;
  const std::string path = dir / "m.safetensors";
  const std::string good = file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8);
  for (std::size_t length = 0; length < good.size(); ++length) {
    write_text(path, good.substr(0, length));
    EXPECT_FALSE(SafeTensors::open(path).ok()) << "truncated to " << length;
  }
  for (const std::uint64_t huge : {100'000'001ull, 1ull << 63, ~0ull}) {
    std::string bad = good;
    std::memcpy(bad.data(), &huge, 8);
    write_text(path, bad);
    expect_refused(path, "larger than");
  }
  expect_refused(dir / "missing.safetensors", "No such file");
  expect_refused(dir / ".", "neither");
  std::filesystem::create_directory(dir / "model.safetensors");
  expect_refused(dir.path(), "not a regular file");
}

class ShardedTest : public testing::Test {
 protected:
  ShardedTest() {
    std::filesystem::create_directories(dir_ / "m/sub");
    write_text(dir_ / "m/one.safetensors", file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8));
    write_text(dir_ / "m/sub/two.safetensors", file_of(R"({"b":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})", 3));
    write_text(dir_ / "outside.safetensors", file_of(R"({"c":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})", 3));
  }
  void index(const std::string& weight_map) {
    write_text(dir_ / "m/model.safetensors.index.json",
               R"({"metadata":{"total_size":11},"weight_map":)" + weight_map + "}");
  }
  ScratchDir dir_;
};

TEST_F(ShardedTest, OpensEveryShard) {
  index(R"({"a":"one.safetensors","b":"sub/two.safetensors"})");
  auto model = SafeTensors::open(dir_ / "m");
  ASSERT_TRUE(model.ok()) << model.error().message;
  std::array<std::byte, 3> b{};
  SafeTensors moved = std::move(*model);
  ASSERT_TRUE(moved.read(*moved.find("b"), 0, b).ok());
  EXPECT_EQ(b[2], std::byte{2});
  EXPECT_TRUE(SafeTensors::open(dir_ / "m/model.safetensors.index.json").ok());
}

TEST_F(ShardedTest, RefusesWhatLeadsElsewhere) {
  std::filesystem::create_symlink("../outside.safetensors", dir_ / "m/link.safetensors");
  std::filesystem::create_symlink("sub", dir_ / "m/linked");
  const auto refused = [&](const std::string& weight_map, const std::string& part) {
    index(weight_map);
    expect_refused(dir_ / "m", part);
  };
  refused(R"({"c":"../outside.safetensors"})", "leads out of");
  refused("{\"c\":\"" + (dir_ / "outside.safetensors") + "\"}", "leads out of");
  refused(R"({"c":"link.safetensors"})", "symbolic link");
  refused(R"({"b":"linked/two.safetensors"})", "symbolic link");
  refused(R"({"a":"gone.safetensors"})", "No such file");
  refused(R"({"a":"sub"})", "not a regular file");
  refused(R"({"b":"one.safetensors"})", "'b' is not in one.safetensors");
  refused(R"({"a":"sub/two.safetensors","b":"one.safetensors"})", "is not in");
  refused(R"({"a":"one.safetensors\u0000x"})", "zero byte");
  refused(R"({"a":7})", "not a file name");
  refused("[]", "no weight_map");
  refused("{\"a\":\"one.safetensors\",\"a\":\"one.safetensors\"}", "twice");
  write_text(dir_ / "m/copy.safetensors", read_text(dir_ / "m/one.safetensors"));
  refused(R"({"a":"one.safetensors","x":"copy.safetensors"})", "also in another file");
}

// Mutations of a valid file either parse to a sound table or are refused with one line.
TEST(SafeTensors, RandomMutationsNeverCrash) {
  const ScratchDir dir("/dev/shm");
  const std::string good =
      file_of(R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
              R"("b":{"dtype":"BF16","shape":[2,2],"data_offsets":[8,16]}})",
              16);
  constexpr std::string_view pieces = "{}[]\",:0123456789-eE.\\u \0\xff";
  std::mt19937_64 random(9);
  std::array<std::byte, 64> out;
  int accepted = 0;
  for (int i = 0; i < 10000; ++i) {
    std::string bad = good;
    for (std::uint64_t n = 1 + random() % 3; n-- > 0;) {
      const std::size_t at = random() % bad.size();
      switch (random() % 4) {
        case 0: bad[at] = static_cast<char>(random()); break;
        case 1: bad[at] = pieces[random() % pieces.size()]; break;
        case 2: bad.erase(at, random() % 5); break;
        default: bad.insert(at, 1, pieces[random() % pieces.size()]); break;
      }
    }
    if (random() % 2 == 0 && bad.size() > 24) {
      const std::uint64_t length = bad.size() - 24;
      std::memcpy(bad.data(), &length, 8);
    }
    write_text(dir / "m.safetensors", bad);
    auto model = SafeTensors::open(dir / "m.safetensors");
    if (!model.ok()) {
      ASSERT_FALSE(model.error().message.empty());
      ASSERT_EQ(model.error().message.find('\n'), std::string::npos);
      continue;
    }
    ++accepted;
    for (const auto& [name, entry] : model->entries()) {
      ASSERT_LE(entry.offset + entry.bytes, bad.size());
      ASSERT_TRUE(model->read(entry, 0, std::span(out).first(std::min<std::size_t>(entry.bytes, out.size()))).ok());
    }
  }
  EXPECT_GT(accepted, 0);
  EXPECT_LT(accepted, 9000);
}

TEST(JsonGuard, Limits) {
  EXPECT_TRUE(check_json(R"({"a":[1,2.5,-3,"x",null,true,{"a":1}],"b":{}})").ok());
  EXPECT_FALSE(check_json(R"({"a":{"b":1,"c":2,"b":3}})").ok());
  EXPECT_FALSE(check_json("[[[]]]", {.depth_max = 2}).ok());
  EXPECT_TRUE(check_json("[[]]", {.depth_max = 2}).ok());
  EXPECT_FALSE(check_json("[1,2,3]", {.values_max = 3}).ok());
  EXPECT_TRUE(check_json("[1,2,3]", {.values_max = 4}).ok());
  EXPECT_FALSE(check_json(std::string(1'000'000, '[')).ok());
  for (const char* bad :
       {"", " ", "{", "}", "nan", "1e999", "[1,]", "{\"a\"}", "[1] 2", "'a'", "\"\xc0\x80\"", "// x\n1"})
    EXPECT_FALSE(check_json(bad).ok()) << bad;
}

}  // namespace
}  // namespace sluice
