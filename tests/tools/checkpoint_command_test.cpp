// sluice checkpoint: complete, stopped and saved runs as models for other programs, and what is refused.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <vector>

#include "io/weights/safetensors.h"
#include "run_command.h"
#include "sluice/adamw.h"
#include "sluice/half.h"
#include "src/model/model.h"
#include "src/train/states/export.h"
#include "src/train/states/export_weights.h"
#include "src/train/states/stored_weights.h"

namespace sluice {
namespace {

using nlohmann::json;

class CheckpointCommand : public RunCommandTest {
 protected:
  std::string to(const std::string& name, const std::string& run_name = "run") const {
    return "checkpoint export " + path(run_name) + " " + path(name) + " ";
  }
  /// Every tensor's bytes by name, whatever the files.
  std::map<std::string, std::string> tensors(const std::string& name) const {
    std::map<std::string, std::string> all;
    const auto model = SafeTensors::open(path(name));
    EXPECT_TRUE(model.ok()) << (model.ok() ? "" : model.error().message);
    if (!model.ok()) return all;
    for (const auto& [tensor, entry] : model->entries()) {
      std::string& data = all[tensor];
      data.resize(entry.bytes);
      EXPECT_TRUE(model->read(entry, 0, std::as_writable_bytes(std::span(data))).ok());
    }
    return all;
  }
  template <class T>
  static std::vector<T> values(const std::string& bytes) {
    std::vector<T> all(bytes.size() / sizeof(T));
    std::memcpy(all.data(), bytes.data(), bytes.size());
    return all;
  }
  std::string model_of(const std::string& name) const {
    const auto config = load_config(path(name));
    EXPECT_TRUE(config.ok()) << (config.ok() ? "" : config.error().message);
    return config.ok() ? hf_config_json(*config, Dtype::bf16) : "";
  }
  double loss_of(const std::string& name) const {
    const Finished f =
        sluice("eval --json --seq 32 --batch 4 --batches 1 --model " + path(name) + " --data " + path("text"));
    EXPECT_EQ(f.status, 0) << f.err;
    return f.status == 0 ? json::parse(f.out)["loss"].get<double>() : std::nan("");
  }
  void train(const std::string& arguments) const {
    const Finished f = sluice(options() + arguments);
    ASSERT_EQ(f.status, 0) << f.err;
  }
  /// A run "from-<name>" of one step that begins with an exported model.
  void go_on_from(const std::string& name, const std::string& data = "text") const {
    const Finished f = sluice("train --seq 32 --batch 4 --steps 1 --eval-batches 1 --data " + path(data) + " --model " +
                              path(name) + " --init " + path(name) + " " + run("from-" + name));
    ASSERT_EQ(f.status, 0) << f.err;
  }
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& entry : std::filesystem::directory_iterator(folder_))
      if (entry.path().filename().string().front() != '.') all.push_back(entry.path().filename());
    std::sort(all.begin(), all.end());
    return all;
  }
  /// Refused with everything left as it was, and nothing added.
  void expect_nothing(const std::string& arguments, const std::string& what) const {
    const auto before = names();
    expect_refused_untouched(arguments, what);
    EXPECT_EQ(before, names()) << arguments;
  }
};

TEST_F(CheckpointCommand, ACompleteRunIsItsModel) {
  for (const char* dtype : {"bf16", "fp32"}) {
    const std::string name = std::string("run-") + dtype, out = std::string("out-") + dtype;
    train(run(name) + "--steps 2 --dtype " + dtype);
    const Finished f = sluice(to(out, name) + "--json");
    ASSERT_EQ(f.status, 0) << f.err;
    EXPECT_EQ(f.err, "");
    const json j = json::parse(f.out);
    EXPECT_EQ(j["step"], 2);
    EXPECT_EQ(j["files"], (json{"model.safetensors", "config.json", "generation_config.json"}));
    EXPECT_EQ(read(path(out) + "/model.safetensors"), read(path(name) + "/model.safetensors"));
    EXPECT_EQ(model_of(out), model_of(name));
    EXPECT_NEAR(loss_of(out), lines(name)[1]["eval_loss"].get<double>(), dtype[0] == 'b' ? 1e-9 : 1e-2);
  }
  expect_nothing(to("wide", "run-bf16") + "--dtype f32", "bf16 parameters only");
  ASSERT_EQ(sluice(to("narrow", "run-fp32") + "--dtype bf16").status, 0);
  const auto exact = tensors("out-fp32"), narrow = tensors("narrow");
  for (const auto& [name, data] : exact) {
    const auto floats = values<float>(data);
    const auto rounded = values<std::uint16_t>(narrow.at(name));
    ASSERT_EQ(floats.size(), rounded.size());
    for (std::size_t i = 0; i < floats.size(); ++i) ASSERT_EQ(rounded[i], to_bf16(floats[i]).bits) << name << i;
  }
}

// Durable with states on the drive and in memory, and saved; of ranks; with moments that are stored in groups.
TEST_F(CheckpointCommand, AStoppedRunIsItsStateAndGoesOn) {
  const std::string memory = "--device-memory 64MiB --host-memory 64MiB --states host ";
  for (const std::string& where :
       {drive(), drive() + "--durable off ", memory, drive() + "--ranks 2 ", memory + "--ranks 2 --moments int8 ",
        memory + "--residency all --moments int8 --nvme " + path("nvme") + " "}) {
    SCOPED_TRACE(where);
    const std::string command = options() + where + "--steps 30 --eval-every 1 ";
    train(where + "--steps 30 --eval-every 1 " + run("whole"));
    ASSERT_EQ(signalled(command + run("run"), "run", "TERM").status, 1);
    const auto before = everything();
    const Finished inspected = sluice("checkpoint inspect --json " + path("run"));
    ASSERT_EQ(inspected.status, 0) << inspected.err;
    EXPECT_NE(sluice("checkpoint inspect " + path("run")).err.find("verifying the states"), std::string::npos);
    const Finished f = sluice(to("model"));
    ASSERT_EQ(f.status, 0) << f.err;
    EXPECT_EQ(sluice(to("wide") + "--dtype f32").status, 0);
    auto after = everything();
    std::erase_if(after, [&](const auto& file) {
      return file.first.starts_with(path("model/")) || file.first.starts_with(path("wide/"));
    });
    EXPECT_TRUE(before == after) << "the run was touched";

    const json last = lines("run").back();
    EXPECT_EQ(json::parse(inspected.out)["step"], last["step"]);
    EXPECT_EQ(json::parse(inspected.out)["complete"], false);
    EXPECT_NEAR(loss_of("model"), last["eval_loss"].get<double>(), 1e-9);
    ASSERT_EQ(sluice("train --resume " + run("run")).status, 0);
    EXPECT_EQ(result("run"), result("whole"));
    EXPECT_EQ(lines("run"), lines("whole"));
    for (const char* name : {"run", "whole", "model", "wide"}) std::filesystem::remove_all(path(name));
  }
}

TEST_F(CheckpointCommand, WiderTypesAreOfTheMasters) {
  stop_a_run();
  for (const char* dtype : {"bf16", "f32", "f16"}) ASSERT_EQ(sluice(to(dtype) + "--dtype " + dtype).status, 0);
  const auto parameters = tensors("bf16"), masters = tensors("f32"), halves = tensors("f16");
  std::size_t between = 0;
  for (const auto& [name, data] : masters) {
    const auto floats = values<float>(data);
    const auto bits = values<bf16>(parameters.at(name));
    const auto half = values<std::uint16_t>(halves.at(name));
    std::vector<bf16> rounded(floats.size());
    std::vector<std::int16_t> remainder(floats.size());
    split_master(floats.data(), rounded.data(), remainder.data(), static_cast<std::int64_t>(floats.size()));
    for (std::size_t i = 0; i < floats.size(); ++i) {
      ASSERT_EQ(rounded[i].bits, bits[i].bits) << name << i;
      ASSERT_EQ(float_to_half(floats[i]), half[i]) << name << i;
      between += remainder[i] != 0;
    }
  }
  EXPECT_GT(between, 1000u);
  EXPECT_EQ(json::parse(read(path("f16/config.json")))["torch_dtype"], "float16");
}

TEST_F(CheckpointCommand, ShardsAreTheSameModel) {
  train(run("run") + "--steps 2 --dtype fp32");
  ASSERT_EQ(sluice(to("one")).status, 0);
  ASSERT_EQ(sluice(to("many") + "--max-shard-size 1MiB").status, 0);
  const json index = json::parse(read(path("many/model.safetensors.index.json")));
  const auto one = tensors("one");
  EXPECT_EQ(one, tensors("many"));
  std::map<std::string, std::uint64_t> shard_bytes;
  std::uint64_t total = 0;
  for (const auto& [name, data] : one) {
    total += data.size();
    shard_bytes[index["weight_map"][name].get<std::string>()] += data.size();
  }
  EXPECT_EQ(index["metadata"]["total_size"], total);
  EXPECT_EQ(index["weight_map"].size(), one.size());
  ASSERT_GT(shard_bytes.size(), 2u);
  std::size_t number = 0;
  for (const auto& [name, bytes] : shard_bytes) {
    char expected[64];
    std::snprintf(expected, sizeof expected, "model-%05zu-of-%05zu.safetensors", ++number, shard_bytes.size());
    EXPECT_EQ(name, expected);
    EXPECT_LE(bytes, 1u << 20);
  }
  EXPECT_FALSE(std::filesystem::exists(path("many/model.safetensors")));
  EXPECT_EQ(loss_of("many"), loss_of("one"));
  for (const char* name : {"many", "one"}) go_on_from(name);
  EXPECT_EQ(result("from-many")["state_hash"], result("from-one")["state_hash"]);
}

// The same weights as Phi-3's fused tensors and as a Llama's: one run, bit for bit; and out again as they came in.
TEST_F(CheckpointCommand, FusedTensorsAreTheSameModel) {
  json config{{"model_type", "phi3"},     {"vocab_size", 256},        {"hidden_size", 128},
              {"num_hidden_layers", 3},   {"num_attention_heads", 4}, {"num_key_value_heads", 2},
              {"intermediate_size", 352}, {"rms_norm_eps", 1e-5}};
  std::filesystem::create_directory(path("began"));
  write("began/config.json", config.dump());
  const auto run_of = [&](const std::string& model, const std::string& init, const std::string& name) {
    const Finished f = sluice(
        "train --seq 32 --batch 4 --steps 1 --eval-batches 1 --dtype fp32 --weight-decay 0 "
        "--lr 1e-30 --lr-end 0 --warmup 0 --data " +
        path("text") + " --model " + path(model) + init + " " + run(name));
    ASSERT_EQ(f.status, 0) << f.err;
  };
  run_of("began", "", "run");
  ASSERT_EQ(sluice(to("one")).status, 0);
  ASSERT_EQ(sluice(to("many") + "--max-shard-size 1MiB").status, 0);
  const auto fused = tensors("one");
  EXPECT_EQ(fused, tensors("many"));
  EXPECT_EQ(fused.size(), 3u + 3 * 6);

  std::filesystem::create_directory(path("llama"));
  config["model_type"] = "llama";
  config["max_position_embeddings"] = 4096;
  write("llama/config.json", config.dump());
  const ModelSpec spec = build_model(load_config(path("llama")).value());
  std::vector<SafeTensorsWriter::Tensor> names;
  for (const UnitSpec& unit : spec.units)
    for (const TensorSpec& t : unit.tensors)
      names.push_back({t.name, TensorDtype::f32, {t.shape.begin(), t.shape.end()}});
  auto split = SafeTensorsWriter::create(path("llama/model.safetensors"), names);
  ASSERT_TRUE(split.ok()) << split.error().message;
  std::map<std::string, std::size_t> used_bytes;
  for (const auto& tensor : names) {
    std::string from = tensor.name;
    for (const auto& [part, whole] : {std::pair{"q_proj", "qkv_proj"},
                                      {"k_proj", "qkv_proj"},
                                      {"v_proj", "qkv_proj"},
                                      {"gate_proj", "gate_up_proj"},
                                      {"up_proj", "gate_up_proj"}})
      if (const std::string end = std::string(".") + part + ".weight"; tensor.name.ends_with(end))
        from = tensor.name.substr(0, tensor.name.size() - end.size()) + "." + whole + ".weight";
    const std::size_t bytes =
        std::accumulate(tensor.shape.begin(), tensor.shape.end(), std::size_t{4}, std::multiplies<>());
    std::size_t& at = used_bytes[from];
    ASSERT_LE(at + bytes, fused.at(from).size()) << from;
    ASSERT_TRUE(split->write(tensor.name, 0, std::as_bytes(std::span(fused.at(from))).subspan(at, bytes)).ok());
    at += bytes;
  }
  for (const auto& [name, data] : fused) EXPECT_EQ(used_bytes[name], data.size()) << name;
  ASSERT_TRUE(split->finish().ok());

  for (const char* name : {"one", "many", "llama"}) run_of(name, " --init " + path(name), std::string("from-") + name);
  EXPECT_EQ(result("from-many")["state_hash"], result("from-one")["state_hash"]);
  EXPECT_EQ(result("from-llama")["state_hash"], result("from-one")["state_hash"]);
  ASSERT_EQ(sluice(to("again", "from-one")).status, 0);
  EXPECT_EQ(read(path("again/model.safetensors")), read(path("one/model.safetensors")));
  EXPECT_EQ(model_of("again"), model_of("began"));
}

TEST_F(CheckpointCommand, WhatLayBesideTheModelComesAlong) {
  train(run("run") + "--steps 1");
  ASSERT_EQ(sluice(to("began")).status, 0);
  json config = json::parse(read(path("began/config.json")));
  EXPECT_TRUE(config["eos_token_id"].is_null());
  config["eos_token_id"] = {7, 9};
  write("began/config.json", config.dump());
  write("began/generation_config.json", R"({"temperature": 0.6})");
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "tokenizer.model",
                           "added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja", "README.md"})
    write(std::string("began/") + name, name);
  // Tokens are there already: nothing is asked of a tokenizer that can not be read.
  ASSERT_EQ(sluice("data tokenize --input " + path("text") + " --output " + path("t.tokens")).status, 0);
  go_on_from("began", "t.tokens");
  const auto expect_all = [&](const std::string& directory) {
    for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "tokenizer.model",
                             "added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja"})
      EXPECT_EQ(read(path(directory + "/") + name), name) << directory;
    EXPECT_FALSE(std::filesystem::exists(path(directory + "/README.md")));
    EXPECT_EQ(read(path(directory + "/generation_config.json")), R"({"temperature": 0.6})");
    EXPECT_EQ(json::parse(read(path(directory + "/config.json")))["eos_token_id"], (json{7, 9}));
  };
  ASSERT_EQ(sluice(to("model", "from-began")).status, 0);
  expect_all("model");
  expect_all("from-began");
  // Runs that began before there were copies look where they began.
  std::filesystem::rename(path("from-began/began_from"), path("kept"));
  ASSERT_EQ(sluice(to("early", "from-began")).status, 0);
  expect_all("early");
  std::filesystem::remove_all(path("began"));
  const Finished without = sluice(to("again", "from-began"));
  EXPECT_EQ(without.status, 0) << without.err;
  EXPECT_NE(without.err.find("is gone: tokenizer files are not copied"), std::string::npos) << without.err;
}

TEST_F(CheckpointCommand, TargetsThatHoldOtherThingsAreRefused) {
  train(run("run") + "--steps 1");
  std::filesystem::create_directory(path("empty"));
  EXPECT_EQ(sluice(to("empty")).status, 0) << "an empty directory serves";
  expect_nothing(to("empty"), "--force");
  const std::string first = read(path("empty/model.safetensors"));
  EXPECT_EQ(sluice(to("empty") + "--force --max-shard-size 1MiB").status, 0);
  EXPECT_FALSE(std::filesystem::exists(path("empty/model.safetensors"))) << "what was there is gone";
  EXPECT_TRUE(std::filesystem::exists(path("empty/model.safetensors.index.json")));
  write("empty/notes.txt", "mine");
  expect_nothing(to("empty") + "--force", "notes.txt");
  std::filesystem::remove(path("empty/notes.txt"));
  write("empty/config.json", "{}");
  expect_nothing(to("empty") + "--force", "no earlier export");
  expect_nothing(to("run") + "--force", "give another directory");
  expect_nothing(to("text"), "not a directory");
  expect_nothing(to("no/such/place"), "No such file");
  expect_nothing("checkpoint export " + path("run") + " /proc/model", "/proc");
}

TEST_F(CheckpointCommand, WrongRequestsAreOneLine) {
  train(run("run") + "--steps 1");
  expect_refused("checkpoint", "subcommand");
  expect_refused("checkpoint export " + path("run"), "DIR");
  expect_nothing(to("model") + "--dtype fp8", "fp8");
  expect_nothing(to("model") + "--max-shard-size lots", "lots");
  expect_nothing(to("model") + "--max-shard-size 5", "1MiB");
  expect_nothing(to("model", "nowhere"), "there is no " + path("nowhere"));
  expect_nothing(to("model", "nvme"), "holds no run");
  expect_nothing("checkpoint inspect " + path("nowhere"), "there is no directory");
  std::filesystem::remove(path("run/model.safetensors"));
  expect_nothing(to("model"), "model.safetensors");
}

TEST_F(CheckpointCommand, RunsThatAreNotWholeAreRefused) {
  stop_a_run();
  std::filesystem::create_directory(path("begun"));
  std::filesystem::copy_file(path("run/run.json"), path("begun/run.json"));
  expect_nothing(to("model", "begun"), "cut short before anything of it was kept");
  std::filesystem::copy(path("run"), path("broken"));
  std::filesystem::resize_file(path("broken/commit.0"), 4096);
  expect_nothing(to("model", "broken"), "cut off");
  const std::string file = swap(), whole = read(file);
  std::ofstream(file) << std::string(whole.size(), 'x');
  const Finished f = sluice(to("model"));
  EXPECT_EQ(f.status, 2) << f.err;
  EXPECT_NE(f.err.find("block 0"), std::string::npos) << f.err;
  EXPECT_FALSE(std::filesystem::exists(path("model")));
  std::filesystem::remove(file);
  expect_nothing(to("model"), "can not open swap file");
  std::ofstream(file) << whole;
  EXPECT_EQ(sluice(to("model")).status, 0);

  ASSERT_EQ(signalled(options() + run("saved") + "--steps 1000", "saved", "TERM").status, 1);
  const std::filesystem::directory_iterator steps(path("saved/saved"));
  const auto step = std::find_if(begin(steps), end(steps), [](const auto& e) { return e.is_directory(); });
  ASSERT_NE(step, end(steps));
  const std::string states = "saved/saved/" + step->path().filename().string() + "/rank-00000.h5";
  std::string saved = read(path(states));
  saved[saved.size() / 2] ^= 1;
  write(states, saved);
  const Finished damaged = sluice(to("other", "saved"));
  EXPECT_EQ(damaged.status, 2) << damaged.err;
  EXPECT_NE(damaged.err.find("damaged"), std::string::npos) << damaged.err;
  EXPECT_FALSE(std::filesystem::exists(path("other")));
}

// Whichever block is damaged: what is exported is the newest step whose weights are whole, moments or no moments.
TEST_F(CheckpointCommand, OnlyWhatIsExportedHasToBeWhole) {
  stop_a_run();
  const auto step = [&](const Finished& f) { return f.status == 0 ? json::parse(f.out)["step"].get<int>() : -1; };
  const auto exported = [&](const std::string& name, const std::string& options) {
    std::filesystem::remove_all(path(name));
    const int at = step(sluice(to(name) + "--json " + options));
    return std::pair(at, at < 0 ? decltype(tensors("")){} : tensors(name));
  };
  const auto newest = exported("model", ""), masters = exported("model", "--dtype f32");
  ASSERT_GT(newest.first, 1);
  std::optional<decltype(tensors(""))> older;
  const std::string file = swap(), whole = read(file);
  int unused = 0, of_moments = 0, of_remainders = 0, of_parameters = 0;
  for (std::size_t at = 1000; at < whole.size(); at += 768u << 10) {
    std::string damaged = whole;
    damaged[at] ^= 4;
    std::ofstream(file) << damaged;
    const int inspected = step(sluice("checkpoint inspect --json " + path("run")));
    const auto narrow = exported("model", ""), wide = exported("model", "--dtype f32");
    EXPECT_EQ(narrow.second == newest.second, narrow.first == newest.first) << at;
    EXPECT_EQ(wide.second == masters.second, wide.first == newest.first) << at;
    EXPECT_LE(inspected, wide.first) << at;
    EXPECT_LE(wide.first, narrow.first) << at;
    for (const int found : {inspected, narrow.first, wide.first})
      EXPECT_TRUE(found == newest.first || found == newest.first - 1) << at;
    if (narrow.first != newest.first) {
      EXPECT_EQ(narrow.second, older.emplace(older.value_or(narrow.second))) << at;
    }
    ++(inspected == newest.first      ? unused
       : wide.first == newest.first   ? of_moments
       : narrow.first == newest.first ? of_remainders
                                      : of_parameters);
  }
  EXPECT_TRUE(unused > 0 && of_moments > 0 && of_remainders > 0 && of_parameters > 0)
      << unused << ' ' << of_moments << ' ' << of_remainders << ' ' << of_parameters;
}

TEST_F(CheckpointCommand, ARunInUseIsRefused) {
  const std::string script = "XDG_CACHE_HOME=" + path("cache") + " " SLUICE_BINARY " " + options() + drive() +
                             run("run") + "--steps 1000000 >/dev/null 2>&1 & echo $! >" + path(".pid") +
                             "; until [ -s " + path("run") +
                             "/metrics.jsonl ]; do kill -0 $! || exit 1; sleep 0.02; done";
  ASSERT_EQ(std::system(script.c_str()), 0);
  expect_refused(to("model"), "in use by another process");
  expect_refused("checkpoint inspect " + path("run"), "in use by another process");
  EXPECT_FALSE(std::filesystem::exists(path("model")));
  EXPECT_EQ(std::system(("kill -9 $(cat " + path(".pid") + ")").c_str()), 0);
}

TEST_F(CheckpointCommand, ValuesBeyondHalfPrecisionAreRefusedByName) {
  train(run("run") + "--steps 1 --dtype fp32");
  EXPECT_EQ(sluice(to("half") + "--dtype f16").status, 0);
  std::string weights = read(path("run/model.safetensors"));
  const float large = -7e4f;
  std::memcpy(weights.data() + weights.size() - 4, &large, 4);
  write("run/model.safetensors", weights);
  expect_nothing(to("model") + "--json --dtype f16", "model.norm.weight has the value -70000");
  EXPECT_EQ(sluice(to("model") + "--dtype bf16").status, 0);
}

TEST_F(CheckpointCommand, AnExportThatIsStoppedLeavesNothing) {
  stop_a_run();
  const auto before = everything();
  const auto directory = RunDirectory::open(path("run"));
  ASSERT_TRUE(directory.ok()) << directory.error().message;
  for (const double until : {0.0, 0.3, 0.99}) {
    int notes = 0;
    const RestoreListener listener{[&](const std::string&) { ++notes; },
                                   [&](const std::string& what) -> States::Watch {
                                     return [&, what](double fraction) -> Status {
                                       if (!what.starts_with("writing") || fraction < until) return success();
                                       return Error{ErrorCode::cancelled, "stopped"};
                                     };
                                   }};
    const auto weights = StoredWeights::open(*directory, listener);
    ASSERT_TRUE(weights.ok()) << weights.error().message;
    ExportOptions options;
    options.directory = path("model");
    const auto stopped = export_weights(**weights, options, listener);
    ASSERT_FALSE(stopped.ok());
    EXPECT_EQ(stopped.error().code, ErrorCode::cancelled);
    EXPECT_TRUE(before == everything());
    EXPECT_EQ(notes, 0);
  }
}

TEST_F(CheckpointCommand, WhatAKilledExportLeftGoesWithTheNext) {
  train(run("run") + "--steps 1");
  std::filesystem::create_directory(path("model.tmp-AbCdEf"));
  write("model.tmp-AbCdEf/model-00001-of-00002.safetensors", "half");
  write("model.tmp-AbCdEf/model-00002-of-00002.safetensors.tmp-x0Y1z2", "half");
  std::filesystem::create_directory(path("model.tmp-backup"));
  write("model.tmp-backup/notes.txt", "mine");
  ASSERT_EQ(sluice(to("model")).status, 0);
  EXPECT_FALSE(std::filesystem::exists(path("model.tmp-AbCdEf")));
  EXPECT_TRUE(std::filesystem::exists(path("model.tmp-backup/notes.txt")));
}

// Writes beyond a limit fail as they do on a full disk, and nothing is left.
TEST_F(CheckpointCommand, AFullDiskLeavesNothing) {
  train(run("run") + "--steps 1");
  const auto before = names();
  const std::string script = "trap '' XFSZ; ulimit -f 512; XDG_CACHE_HOME=" + path("cache") + " " SLUICE_BINARY " " +
                             to("model") + " 2>" + path(".err");
  const int status = std::system(script.c_str());
  EXPECT_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 1);
  const std::string said = read(path(".err"));
  EXPECT_NE(said.find("model.safetensors"), std::string::npos) << said;
  EXPECT_NE(said.find("File too large"), std::string::npos) << said;
  EXPECT_EQ(before, names());
}

}  // namespace
}  // namespace sluice
