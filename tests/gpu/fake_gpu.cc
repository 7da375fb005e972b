// Devices of type "GPU" whose memory is the host's and whose kernels are the CPU's.
//
// TensorFlow's CUDA build registers its GPU kernels also on machines without a GPU. Each of them is
// registered here once more, for the same operation, dtypes and host-memory arguments, and runs the
// CPU's kernel. So placement, partitioning, copies and memory are TensorFlow's own for GPUs.
//
// Like a real GPU, a device has streams: queues with a thread each, in which copies run in order
// and apart from the host. A kernel first waits for the stream it belongs to, and only for that
// one: data that TensorFlow does not wait for is not there yet.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tensorflow/c/experimental/stream_executor/stream_executor.h"
#include "tensorflow/core/framework/device.h"
#include "tensorflow/core/framework/device_factory.h"
#include "tensorflow/core/framework/kernel_def.pb.h"
#include "tensorflow/core/framework/node_properties.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/public/session_options.h"

namespace {

constexpr int kMaxDevices = 16;
constexpr int64_t kUnlimited = INT64_MAX;

int64_t Now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

int64_t Setting(const std::string& name, int64_t otherwise) {
  const char* text = getenv(name.c_str());
  return text ? atoll(text) : otherwise;
}

// Without TensorFlow's allocator, which rounds up, the memory that is taken is what tensors need.
bool IsExact() { return Setting("KERASDIST_FAKE_GPU_EXACT", 0) != 0; }

// As many as KERASDIST_FAKE_GPUS says, or as CUDA_VISIBLE_DEVICES lists.
int NumDevices() {
  const char* visible = getenv("CUDA_VISIBLE_DEVICES");
  if (visible && *visible) {
    const std::string listed = visible;
    if (listed[0] == '-') return 0;
    return 1 + std::count(listed.begin(), listed.end(), ',');
  }
  return std::min<int64_t>(Setting("KERASDIST_FAKE_GPUS", 2), kMaxDevices);
}

// What is counted on each device. The order is that of `COUNTERS` in fake_gpu.py.
enum Counter { kToDevice, kToDeviceBytes, kToHost, kToHostBytes, kBetween, kBetweenBytes, kWithin,
               kWithinBytes, kKernels, kNccl, kNcclBytes, kNumCounters };

struct Fake {
  std::atomic<int64_t> counts[kNumCounters] = {};
  std::atomic<bool> stopped{false};
  std::atomic<int64_t> limit{kUnlimited};  // Bytes of memory that may be taken.
  std::atomic<int64_t> taken{0};
  std::atomic<int64_t> peak{0};  // The most that was taken at a time.
  SP_Stream compute = nullptr;  // TensorFlow makes the stream of kernels first.
};
Fake* devices = new Fake[kMaxDevices];
std::atomic<int64_t> copy_delay_us{0};

// Memory of the devices, to tell copies between devices from copies within one.
std::mutex* memory_mutex = new std::mutex;
std::map<char*, std::pair<uint64_t, int>>* memory = new std::map<char*, std::pair<uint64_t, int>>;

int OwnerOf(const void* address) {
  std::lock_guard<std::mutex> lock(*memory_mutex);
  auto found = memory->upper_bound((char*)address);
  if (found == memory->begin()) return -1;
  --found;
  return (char*)address < found->first + found->second.first ? found->second.second : -1;
}

// What happened when, while a trace is on.
struct Record { std::string what; int device; int64_t bytes, begin, end; };
std::atomic<bool> tracing{false};
std::mutex* trace_mutex = new std::mutex;
std::vector<Record>* trace = new std::vector<Record>;

void Note(const std::string& what, int device, int64_t bytes, int64_t begin) {
  if (!tracing) return;
  std::lock_guard<std::mutex> lock(*trace_mutex);
  trace->push_back({what, device, bytes, begin, Now()});
}

void WaitWhileStopped(int device) {
  while (devices[device].stopped) std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

// Something that other threads wait for.
struct Signal {
  std::mutex mutex;
  std::condition_variable changed;
  bool is_done = false;
  void Set() {
    { std::lock_guard<std::mutex> lock(mutex); is_done = true; }
    changed.notify_all();
  }
  void Wait() {
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [this] { return is_done; });
  }
  bool IsDone() {
    std::lock_guard<std::mutex> lock(mutex);
    return is_done;
  }
};

}  // namespace

extern "C" {

// A queue with its thread. It lives as long as the process.
struct SP_Stream_st {
  int device;
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> work;
  bool is_busy = false;

  explicit SP_Stream_st(int device) : device(device) {
    std::thread([this] { Run(); }).detach();
  }
  void Run() {
    std::unique_lock<std::mutex> lock(mutex);
    while (true) {
      changed.wait(lock, [this] { return !work.empty(); });
      auto next = std::move(work.front());
      work.pop_front();
      is_busy = true;
      lock.unlock();
      WaitWhileStopped(device);
      next();
      next = nullptr;
      lock.lock();
      is_busy = false;
      changed.notify_all();
    }
  }
  void Add(std::function<void()> what) {
    { std::lock_guard<std::mutex> lock(mutex); work.push_back(std::move(what)); }
    changed.notify_all();
  }
  void Drain() {
    WaitWhileStopped(device);
    std::unique_lock<std::mutex> lock(mutex);
    changed.wait(lock, [this] { return work.empty() && !is_busy; });
  }
};
struct SP_Event_st { std::mutex mutex; std::shared_ptr<Signal> signal; };
struct SP_Timer_st { int unused; };

// The interface of fake_gpu.py.
int64_t fake_gpu_count(int device, int counter) { return devices[device].counts[counter]; }
int64_t fake_gpu_peak(int device) { return devices[device].peak; }
void fake_gpu_reset_peak(int device) { devices[device].peak = devices[device].taken.load(); }
void fake_gpu_stop(int device, int is_stopped) { devices[device].stopped = is_stopped; }
void fake_gpu_limit(int device, int64_t bytes) { devices[device].limit = bytes; }
void fake_gpu_copy_delay(int64_t microseconds) { copy_delay_us = microseconds; }
void fake_gpu_trace(int is_on) {
  std::lock_guard<std::mutex> lock(*trace_mutex);
  if (is_on) trace->clear();
  tracing = is_on;
}
int64_t fake_gpu_trace_size() {
  std::lock_guard<std::mutex> lock(*trace_mutex);
  return trace->size();
}
void fake_gpu_trace_read(int64_t i, char* what, int size, int64_t* numbers) {
  std::lock_guard<std::mutex> lock(*trace_mutex);
  const Record& record = (*trace)[i];
  snprintf(what, size, "%s", record.what.c_str());
  numbers[0] = record.device; numbers[1] = record.bytes;
  numbers[2] = record.begin; numbers[3] = record.end;
}

}  // extern "C"

namespace {

void Ok(TF_Status* status) { TF_SetStatus(status, TF_OK, ""); }

void Allocate(const SP_Device* device, uint64_t size, int64_t, SP_DeviceMemoryBase* result) {
  Fake& fake = devices[device->ordinal];
  void* address = nullptr;
  const bool fits = fake.taken + (int64_t)size <= fake.limit;
  if (!fits || posix_memalign(&address, 256, size ? size : 256)) address = nullptr;
  if (address) {
    fake.taken += size;
    std::lock_guard<std::mutex> lock(*memory_mutex);
    fake.peak = std::max<int64_t>(fake.peak, fake.taken);
    (*memory)[(char*)address] = {size, device->ordinal};
  }
  result->struct_size = SP_DEVICE_MEMORY_BASE_STRUCT_SIZE;
  result->opaque = address;
  result->size = address ? size : 0;
}
void Deallocate(const SP_Device* device, SP_DeviceMemoryBase* given) {
  {
    std::lock_guard<std::mutex> lock(*memory_mutex);
    auto found = memory->find((char*)given->opaque);
    if (found != memory->end()) {
      devices[device->ordinal].taken -= found->second.first;
      memory->erase(found);
    }
  }
  free(given->opaque);
  given->opaque = nullptr;
  given->size = 0;
}
void* HostAllocate(const SP_Device*, uint64_t size) {
  void* address = nullptr;
  return posix_memalign(&address, 256, size ? size : 256) ? nullptr : address;
}
void HostDeallocate(const SP_Device*, void* address) { free(address); }
void* UnifiedAllocate(const SP_Device*, uint64_t) { return nullptr; }
void UnifiedDeallocate(const SP_Device*, void*) {}
TF_Bool AllocatorStats(const SP_Device*, SP_AllocatorStats*) { return false; }
TF_Bool MemoryUsage(const SP_Device* device, int64_t* free_bytes, int64_t* total) {
  const std::string own = "KERASDIST_FAKE_GPU_MB_" + std::to_string(device->ordinal);
  *free_bytes = *total = Setting(own, Setting("KERASDIST_FAKE_GPU_MB", 6000)) << 20;
  return true;
}

void CreateStream(const SP_Device* device, SP_Stream* stream, TF_Status* status) {
  *stream = new SP_Stream_st(device->ordinal);
  if (!devices[device->ordinal].compute) devices[device->ordinal].compute = *stream;
  Ok(status);
}
void DestroyStream(const SP_Device*, SP_Stream) {}
void StreamDependency(const SP_Device*, SP_Stream dependent, SP_Stream other, TF_Status* status) {
  if (dependent != other) {
    auto signal = std::make_shared<Signal>();
    other->Add([signal] { signal->Set(); });
    dependent->Add([signal] { signal->Wait(); });
  }
  Ok(status);
}
void StreamStatus(const SP_Device*, SP_Stream, TF_Status* status) { Ok(status); }

void CreateEvent(const SP_Device*, SP_Event* event, TF_Status* status) {
  *event = new SP_Event_st;
  Ok(status);
}
void DestroyEvent(const SP_Device*, SP_Event event) { delete event; }
std::shared_ptr<Signal> SignalOf(SP_Event event) {
  std::lock_guard<std::mutex> lock(event->mutex);
  return event->signal;
}
SE_EventStatus EventStatus(const SP_Device*, SP_Event event) {
  auto signal = SignalOf(event);
  return !signal || signal->IsDone() ? SE_EVENT_COMPLETE : SE_EVENT_PENDING;
}
void RecordEvent(const SP_Device*, SP_Stream stream, SP_Event event, TF_Status* status) {
  auto signal = std::make_shared<Signal>();
  {
    std::lock_guard<std::mutex> lock(event->mutex);
    event->signal = signal;
  }
  stream->Add([signal] { signal->Set(); });
  Ok(status);
}
void WaitForEvent(const SP_Device*, SP_Stream stream, SP_Event event, TF_Status* status) {
  auto signal = SignalOf(event);
  if (signal) stream->Add([signal] { signal->Wait(); });
  Ok(status);
}
void BlockForEvent(const SP_Device*, SP_Event event, TF_Status* status) {
  auto signal = SignalOf(event);
  if (signal) signal->Wait();
  Ok(status);
}
void BlockUntilDone(const SP_Device*, SP_Stream stream, TF_Status* status) {
  stream->Drain();
  Ok(status);
}
void SynchronizeAll(const SP_Device* device, TF_Status* status) {
  if (devices[device->ordinal].compute) devices[device->ordinal].compute->Drain();
  Ok(status);
}

void CreateTimer(const SP_Device*, SP_Timer* timer, TF_Status* status) {
  *timer = new SP_Timer_st;
  Ok(status);
}
void DestroyTimer(const SP_Device*, SP_Timer timer) { delete timer; }
void UseTimer(const SP_Device*, SP_Stream, SP_Timer, TF_Status* status) { Ok(status); }
uint64_t Nanoseconds(SP_Timer) { return 1; }

// A copy begins when its stream has come to it, and the counters know of it from then on.
void Copy(int device, Counter counter, const char* name, void* to, const void* from, uint64_t size) {
  const int64_t begin = Now();
  Fake& fake = devices[device];
  fake.counts[counter]++;
  fake.counts[counter + 1] += size;
  if (copy_delay_us) std::this_thread::sleep_for(std::chrono::microseconds(copy_delay_us));
  memcpy(to, from, size);
  Note(name, device, size, begin);
}
void DeviceToDevice(int device, void* to, const void* from, uint64_t size) {
  const bool is_within = OwnerOf(to) == OwnerOf(from);
  Copy(device, is_within ? kWithin : kBetween, is_within ? "within" : "between", to, from, size);
}
void ToHost(const SP_Device* device, SP_Stream stream, void* to, const SP_DeviceMemoryBase* from,
            uint64_t size, TF_Status* status) {
  stream->Add([=, i = device->ordinal, address = from->opaque] {
    Copy(i, kToHost, "to host", to, address, size);
  });
  Ok(status);
}
void ToDevice(const SP_Device* device, SP_Stream stream, SP_DeviceMemoryBase* to, const void* from,
              uint64_t size, TF_Status* status) {
  stream->Add([=, i = device->ordinal, address = to->opaque] {
    Copy(i, kToDevice, "to device", address, from, size);
  });
  Ok(status);
}
void Between(const SP_Device* device, SP_Stream stream, SP_DeviceMemoryBase* to,
             const SP_DeviceMemoryBase* from, uint64_t size, TF_Status* status) {
  stream->Add([=, i = device->ordinal, target = to->opaque, source = from->opaque] {
    DeviceToDevice(i, target, source, size);
  });
  Ok(status);
}
void ToHostNow(const SP_Device* device, void* to, const SP_DeviceMemoryBase* from, uint64_t size,
               TF_Status* status) {
  Copy(device->ordinal, kToHost, "to host", to, from->opaque, size);
  Ok(status);
}
void ToDeviceNow(const SP_Device* device, SP_DeviceMemoryBase* to, const void* from, uint64_t size,
                 TF_Status* status) {
  Copy(device->ordinal, kToDevice, "to device", to->opaque, from, size);
  Ok(status);
}
void BetweenNow(const SP_Device* device, SP_DeviceMemoryBase* to, const SP_DeviceMemoryBase* from,
                uint64_t size, TF_Status* status) {
  DeviceToDevice(device->ordinal, to->opaque, from->opaque, size);
  Ok(status);
}
void SetBytes(const SP_Device*, SP_Stream stream, SP_DeviceMemoryBase* to, uint8_t value,
              uint64_t size, TF_Status* status) {
  stream->Add([=, address = to->opaque] { memset(address, value, size); });
  Ok(status);
}
void SetZero(const SP_Device* device, SP_Stream stream, SP_DeviceMemoryBase* to, uint64_t size,
             TF_Status* status) {
  SetBytes(device, stream, to, 0, size, status);
}
void SetWords(const SP_Device*, SP_Stream stream, SP_DeviceMemoryBase* to, uint32_t value,
              uint64_t size, TF_Status* status) {
  stream->Add([=, words = (uint32_t*)to->opaque] { std::fill(words, words + size / 4, value); });
  Ok(status);
}
TF_Bool HostCallback(const SP_Device*, SP_Stream stream, SE_StatusCallbackFn function, void* given) {
  stream->Add([=] {
    TF_Status* status = TF_NewStatus();
    function(given, status);
    TF_DeleteStatus(status);
  });
  return true;
}

void DeviceCount(const SP_Platform*, int* count, TF_Status* status) {
  *count = NumDevices();
  Ok(status);
}
void CreateDevice(const SP_Platform*, SE_CreateDeviceParams* given, TF_Status* status) {
  given->device->struct_size = SP_DEVICE_STRUCT_SIZE;
  given->device->device_handle = nullptr;
  given->device->ordinal = given->ordinal;
  given->device->hardware_name = "fake";
  given->device->device_vendor = "kerasdist";
  given->device->pci_bus_id = nullptr;
  Ok(status);
}
void DestroyDevice(const SP_Platform*, SP_Device*) {}
void CreateDeviceFunctions(const SP_Platform*, SE_CreateDeviceFnsParams* given, TF_Status* status) {
  given->device_fns->struct_size = SP_DEVICE_FNS_STRUCT_SIZE;
  Ok(status);
}
void DestroyDeviceFunctions(const SP_Platform*, SP_DeviceFns*) {}
void CreateExecutor(const SP_Platform*, SE_CreateStreamExecutorParams* given, TF_Status* status) {
  SP_StreamExecutor* e = given->stream_executor;
  e->struct_size = SP_STREAMEXECUTOR_STRUCT_SIZE;
  e->allocate = Allocate;
  e->deallocate = Deallocate;
  e->host_memory_allocate = HostAllocate;
  e->host_memory_deallocate = HostDeallocate;
  e->unified_memory_allocate = UnifiedAllocate;
  e->unified_memory_deallocate = UnifiedDeallocate;
  e->get_allocator_stats = AllocatorStats;
  e->device_memory_usage = MemoryUsage;
  e->create_stream = CreateStream;
  e->destroy_stream = DestroyStream;
  e->create_stream_dependency = StreamDependency;
  e->get_stream_status = StreamStatus;
  e->create_event = CreateEvent;
  e->destroy_event = DestroyEvent;
  e->get_event_status = EventStatus;
  e->record_event = RecordEvent;
  e->wait_for_event = WaitForEvent;
  e->create_timer = CreateTimer;
  e->destroy_timer = DestroyTimer;
  e->start_timer = UseTimer;
  e->stop_timer = UseTimer;
  e->memcpy_dtoh = ToHost;
  e->memcpy_htod = ToDevice;
  e->memcpy_dtod = Between;
  e->sync_memcpy_dtoh = ToHostNow;
  e->sync_memcpy_htod = ToDeviceNow;
  e->sync_memcpy_dtod = BetweenNow;
  e->block_host_for_event = BlockForEvent;
  e->block_host_until_done = BlockUntilDone;
  e->synchronize_all_activity = SynchronizeAll;
  e->mem_zero = SetZero;
  e->memset = SetBytes;
  e->memset32 = SetWords;
  e->host_callback = HostCallback;
  Ok(status);
}
void DestroyExecutor(const SP_Platform*, SP_StreamExecutor*) {}
void CreateTimerFunctions(const SP_Platform*, SP_TimerFns* functions, TF_Status* status) {
  functions->struct_size = SP_TIMER_FNS_STRUCT_SIZE;
  functions->nanoseconds = Nanoseconds;
  Ok(status);
}
void DestroyTimerFunctions(const SP_Platform*, SP_TimerFns*) {}
void DestroyPlatform(SP_Platform*) {}
void DestroyPlatformFunctions(SP_PlatformFns*) {}

}  // namespace

extern "C" void SE_InitPlugin(SE_PlatformRegistrationParams* given, TF_Status* status) {
  given->platform->struct_size = SP_PLATFORM_STRUCT_SIZE;
  given->platform->name = "FAKE";
  given->platform->type = "GPU";
  given->platform->supports_unified_memory = false;
  given->platform->use_bfc_allocator = !IsExact();
  given->platform->force_memory_growth = true;
  SP_PlatformFns* functions = given->platform_fns;
  functions->struct_size = SP_PLATFORM_FNS_STRUCT_SIZE;
  functions->get_device_count = DeviceCount;
  functions->create_device = CreateDevice;
  functions->destroy_device = DestroyDevice;
  functions->create_device_fns = CreateDeviceFunctions;
  functions->destroy_device_fns = DestroyDeviceFunctions;
  functions->create_stream_executor = CreateExecutor;
  functions->destroy_stream_executor = DestroyExecutor;
  functions->create_timer_fns = CreateTimerFunctions;
  functions->destroy_timer_fns = DestroyTimerFunctions;
  given->destroy_platform = DestroyPlatform;
  given->destroy_platform_fns = DestroyPlatformFunctions;
  Ok(status);
}

namespace tensorflow {
namespace {

Device* Cpu() {
  static Device* cpu =
      DeviceFactory::NewDevice("CPU", SessionOptions(), "/job:localhost/replica:0/task:0").release();
  return cpu;
}

int NumberOf(OpKernelContext* context) {
  const std::string& name = context->device()->name();
  return atoi(name.substr(name.rfind(':') + 1).c_str());
}

// A kernel waits for what its stream has to do before it.
int BeginKernel(OpKernelContext* context) {
  const int device = NumberOf(context);
  WaitWhileStopped(device);
  if (devices[device].compute) devices[device].compute->Drain();
  devices[device].counts[kKernels]++;
  return device;
}

int64_t BytesInUse(OpKernelContext* context) {
  if (IsExact()) return devices[NumberOf(context)].taken;
  auto stats = context->device()->GetAllocator(AllocatorAttributes())->GetStats();
  return stats ? stats->bytes_in_use : 0;
}

// GPU kernels of these operations write to the memory of an input that nobody else needs.
const std::set<std::string>& Elementwise() {
  static const auto* names = new std::set<std::string>{
      "Abs", "Add", "AddN", "AddV2", "BiasAdd", "Div", "DivNoNan", "Exp", "Log", "Maximum",
      "Minimum", "Mul", "Neg", "Pow", "RealDiv", "Reciprocal", "Relu", "ReluGrad", "Rsqrt",
      "RsqrtGrad", "SelectV2", "Sigmoid", "SigmoidGrad", "Sign", "Softmax", "Sqrt", "SqrtGrad",
      "Square", "SquaredDifference", "Sub", "Tanh", "TanhGrad"};
  return *names;
}

// Runs the CPU's kernel of the same node on the same memory.
class OnCpu : public OpKernel {
 public:
  explicit OnCpu(OpKernelConstruction* c) : OpKernel(c) {
    std::shared_ptr<const NodeProperties> properties;
    NodeDef node = c->def();
    node.clear_device();
    OP_REQUIRES_OK(c, NodeProperties::CreateFromNodeDef(node, OpRegistry::Global(), &properties));
    OpKernel* kernel = nullptr;
    OP_REQUIRES_OK(c, CreateOpKernel(DeviceType("CPU"), Cpu(),
                                     Cpu()->GetAllocator(AllocatorAttributes()),
                                     c->function_library(), c->resource_manager(), properties,
                                     c->graph_def_version(), &kernel));
    kernel_.reset(kernel);
    is_elementwise_ = Elementwise().count(c->def().op()) > 0;
  }

  void Compute(OpKernelContext* context) override {
    const int device = BeginKernel(context);
    const int64_t begin = Now();
    OpKernelContext::Params params;
    std::vector<Tensor> inputs(context->num_inputs());
    gtl::InlinedVector<TensorValue, 8> values(context->num_inputs());
    gtl::InlinedVector<AllocatorAttributes, 8> attributes(context->num_inputs());
    for (int i = 0; i < context->num_inputs(); i++) {
      if (!context->has_input(i)) continue;
      inputs[i] = context->input(i);
      values[i] = TensorValue(&inputs[i]);
    }
    std::vector<AllocatorAttributes> output_attributes(context->num_outputs());
    params.step_id = context->step_id();
    params.op_kernel = kernel_.get();
    params.device = Cpu();
    params.output_attr_array = output_attributes.data();
    params.resource_manager = context->resource_manager();
    params.step_container = context->step_container();
    params.cancellation_manager = context->cancellation_manager();
    params.inputs = values;
    params.input_alloc_attrs = attributes;
    params.frame_iter = context->frame_iter();
    params.function_library = context->function_library();
    params.runner = context->runner();
    OpKernelContext on_cpu(&params, context->num_outputs());
    Cpu()->Compute(kernel_.get(), &on_cpu);
    OP_REQUIRES_OK(context, on_cpu.status());
    // Slices of an input share its memory, on a GPU, too.
    std::vector<bool> is_shared(context->num_outputs());
    for (int i = 0; i < context->num_outputs(); i++) {
      for (const Tensor& input : inputs) {
        Tensor* result = on_cpu.mutable_output(i);
        if (result != nullptr && result->SharesBufferWith(input)) is_shared[i] = true;
      }
    }
    values.clear();
    inputs.clear();
    for (int i = 0; i < context->num_outputs(); i++) {
      OP_REQUIRES_OK(context, TakeOver(context, on_cpu.mutable_output(i), i, is_shared[i]));
    }
    for (int i = 0; i < context->num_outputs(); i++) {
      TensorValue value = on_cpu.release_output(i);
      if (value.tensor != nullptr) delete value.tensor;
    }
    if (tracing) Note(type_string(), device, BytesInUse(context), begin);
  }

 private:
  absl::Status TakeOver(OpKernelContext* context, Tensor* result, int i, bool is_shared) {
    if (result == nullptr) return absl::OkStatus();
    const bool is_on_host = context->output_memory_type(i) == HOST_MEMORY;
    if (is_on_host || is_shared || !DataTypeCanUseMemcpy(result->dtype())) {
      context->set_output(i, *result);
      return absl::OkStatus();
    }
    Tensor* own = nullptr;
    if (is_elementwise_) {
      std::vector<int> candidates;
      for (int j = 0; j < context->num_inputs(); j++) candidates.push_back(j);
      TF_RETURN_IF_ERROR(
          context->forward_input_or_allocate_output(candidates, i, result->shape(), &own));
    } else {
      TF_RETURN_IF_ERROR(context->allocate_output(i, result->shape(), &own));
    }
    if (result->TotalBytes()) memcpy(own->data(), result->data(), result->TotalBytes());
    return absl::OkStatus();
  }

  std::unique_ptr<OpKernel> kernel_;
  bool is_elementwise_ = false;
};

// For GPU kernels that would need CUDA: an error that says so instead of a crash.
class Missing : public OpKernel {
 public:
  explicit Missing(OpKernelConstruction* c) : OpKernel(c) {
    c->SetStatus(absl::UnimplementedError("the fake GPU has no kernel for " + c->def().op()));
  }
  void Compute(OpKernelContext*) override {}
};

// In place, as on a GPU.
template <int sign>
class AssignUpdate : public OpKernel {
 public:
  explicit AssignUpdate(OpKernelConstruction* c) : OpKernel(c) {}
  void Compute(OpKernelContext* context) override {
    const int device = BeginKernel(context);
    const int64_t begin = Now();
    core::RefCountPtr<Var> variable;
    OP_REQUIRES_OK(context, LookupResource(context, HandleFromInput(context, 0), &variable));
    mutex_lock lock(*variable->mu());
    const Tensor& value = context->input(1);
    Tensor* stored = variable->tensor();
    if (!stored->RefCountIsOne()) {  // Somebody still reads the old value.
      Tensor copy;
      OP_REQUIRES_OK(context, context->allocate_temp(stored->dtype(), stored->shape(), &copy));
      memcpy(copy.data(), stored->data(), stored->TotalBytes());
      *stored = copy;
    }
    auto add = [&](auto zero) {
      using T = decltype(zero);
      T* to = (T*)stored->data();
      const T* from = (const T*)value.data();
      for (int64_t i = 0; i < value.NumElements(); i++) {
        to[i] = sign > 0 ? T(to[i] + from[i]) : T(to[i] - from[i]);
      }
    };
    switch (value.dtype()) {
      case DT_FLOAT: add(0.0f); break;
      case DT_DOUBLE: add(0.0); break;
      case DT_INT64: add((int64_t)0); break;
      case DT_INT32: add((int32_t)0); break;
      case DT_HALF: add(Eigen::half(0)); break;
      case DT_BFLOAT16: add(bfloat16(0)); break;
      default: context->SetStatus(absl::UnimplementedError("fake GPU: dtype of an update"));
    }
    if (tracing) Note(type_string(), device, BytesInUse(context), begin);
  }
};

// As NcclAllReduce within a process. NCCL hangs if the devices launch reductions in different
// orders, so this is an error here. As with NCCL, nobody is told of a cancelled step.
struct Group {
  std::vector<OpKernelContext*> contexts;
  std::vector<std::function<void()>> done;
};
std::mutex* nccl_mutex = new std::mutex;
std::map<std::string, Group>* groups = new std::map<std::string, Group>;
std::vector<std::string>* launched = new std::vector<std::string>[kMaxDevices];

// NCCL itself would hang here. Nothing works after it.
absl::Status* nccl_failed = new absl::Status;
void FailAll(const absl::Status& status) {
  *nccl_failed = status;
  for (auto& [key, group] : *groups) {
    for (auto* context : group.contexts) context->SetStatus(status);
    for (auto& done : group.done) done();
  }
  groups->clear();
}

class Nccl : public AsyncOpKernel {
 public:
  explicit Nccl(OpKernelConstruction* c) : AsyncOpKernel(c) {
    OP_REQUIRES_OK(c, c->GetAttr("num_devices", &num_devices_));
    OP_REQUIRES_OK(c, c->GetAttr("shared_name", &shared_name_));
  }
  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    const int device = BeginKernel(context);
    Tensor* output = nullptr;
    OP_REQUIRES_OK_ASYNC(context,
                         context->forward_input_or_allocate_output(
                             {0}, 0, context->input(0).shape(), &output),
                         done);
    const auto frame = context->frame_iter();
    const std::string key = shared_name_ + ";" + std::to_string(context->step_id()) + ";" +
                            std::to_string(frame.frame_id) + ":" + std::to_string(frame.iter_id);
    Group group;
    {
      std::lock_guard<std::mutex> lock(*nccl_mutex);
      if (!nccl_failed->ok()) {
        context->SetStatus(*nccl_failed);
        done();
        return;
      }
      launched[device].push_back(key);
      const size_t place = launched[device].size() - 1;
      for (int i = 0; i < kMaxDevices; i++) {
        if (launched[i].size() <= place || launched[i][place] == key) continue;
        (*groups)[key].contexts.push_back(context);
        (*groups)[key].done.push_back(done);
        FailAll(absl::InternalError("the devices launch NCCL's reductions in different orders: " +
                                    launched[i][place] + " and " + key));
        return;
      }
      Group& mine = (*groups)[key];
      mine.contexts.push_back(context);
      mine.done.push_back(done);
      if ((int)mine.contexts.size() < num_devices_) return;
      group = std::move(mine);
      groups->erase(key);
    }
    Reduce(group);
    for (auto& each : group.done) each();
  }

 private:
  void Reduce(Group& group) {
    std::sort(group.contexts.begin(), group.contexts.end(), [](auto* a, auto* b) {
      return NumberOf(a) < NumberOf(b);
    });
    const Tensor& first = group.contexts[0]->input(0);
    const int64_t size = first.NumElements();
    auto add = [&](auto zero) {
      using T = decltype(zero);
      std::vector<T> sum(size, T(0));
      for (auto* each : group.contexts) {
        auto values = each->input(0).flat<T>();
        for (int64_t i = 0; i < size; i++) sum[i] += values(i);
      }
      for (auto* each : group.contexts) {
        memcpy(each->mutable_output(0)->data(), sum.data(), size * sizeof(T));
      }
    };
    switch (first.dtype()) {
      case DT_FLOAT: add(0.0f); break;
      case DT_DOUBLE: add(0.0); break;
      case DT_INT64: add((int64_t)0); break;
      case DT_INT32: add((int32_t)0); break;
      default: group.contexts[0]->SetStatus(absl::UnimplementedError("fake GPU: dtype of NCCL"));
    }
    for (auto* each : group.contexts) {
      devices[NumberOf(each)].counts[kNccl]++;
      devices[NumberOf(each)].counts[kNcclBytes] += first.TotalBytes();
    }
  }
  int num_devices_;
  std::string shared_name_;
};

// TensorFlow's own GPU kernels of these operations need no CUDA.
const std::set<std::string>& Kept() {
  static const auto* names = new std::set<std::string>{
      "Abort", "Assert", "Assign", "AssignVariableOp", "Case", "CollectiveGather",
      "CollectiveGatherV2", "CollectiveInitializeCommunicator", "CollectiveReduce",
      "CollectiveReduceV2", "CollectiveReduceV3", "Const", "ControlTrigger", "DestroyResourceOp",
      "DeviceIndex", "EnsureShape", "Enter", "Exit", "ExpandDims", "FakeParam", "For", "Identity",
      "IdentityN", "If", "LoopCond", "Merge", "NcclAllReduce", "NcclBroadcast", "NcclReduce",
      "NextIteration", "NoOp", "PartitionedCall", "Placeholder", "PlaceholderWithDefault",
      "PreventGradient", "Print", "PrintV2", "Rank", "ReadVariableOp", "RefEnter", "RefExit",
      "RefIdentity", "RefMerge", "RefNextIteration", "RefSwitch", "RemoteCall", "Reshape", "Shape",
      "ShapeN", "Size", "Squeeze", "StatefulPartitionedCall", "StatelessCase", "StatelessIf",
      "StatelessWhile", "StopGradient", "Switch", "SymbolicGradient", "ToBool",
      "VarHandleOp", "VarIsInitializedOp", "Variable", "VariableShape", "VariableV2", "While",
      "XlaLaunch", "XlaLaunchV2", "_Arg", "_ArrayToList", "_DeviceArg", "_DeviceRetval",
      "_HostCast", "_HostRecv", "_HostSend", "_ListToArray", "_NcclBroadcastRecv",
      "_NcclBroadcastSend", "_NcclReduceRecv", "_NcclReduceSend", "_ReadVariablesOp", "_Recv",
      "_Retval", "_Send", "_SwitchN", "_VarHandlesOp", "_XlaCompile", "_XlaMerge", "_XlaRun"};
  return *names;
}

template <typename Kernel>
void Register(const KernelDef& definition, const char* name) {
  auto* own = new KernelDef(definition);
  own->set_priority(7);
  kernel_factory::OpKernelRegistrar(
      own, name, [](OpKernelConstruction* c) -> OpKernel* { return new Kernel(c); });
}

bool NeedsCuda(const std::string& op) {
  for (const char* prefix : {"ResourceApply", "ResourceGather", "ResourceScatter",
                             "ResourceSparseApply", "ResourceStridedSliceAssign"}) {
    if (op.rfind(prefix, 0) == 0) return true;
  }
  return false;
}

}  // namespace
}  // namespace tensorflow

extern "C" void TF_InitKernel() {
  using namespace tensorflow;
  const KernelList all = GetAllRegisteredKernels();
  for (const KernelDef& definition : all.kernel()) {
    if (definition.device_type() != "GPU" || definition.priority() >= 7) continue;
    if (!definition.label().empty() || Kept().count(definition.op())) continue;
    bool has_resource = false;
    for (const std::string& name : definition.host_memory_arg()) {
      has_resource |= name == "resource" || name == "var" || name == "handle";
    }
    if (definition.op() == "AssignAddVariableOp") {
      Register<AssignUpdate<1>>(definition, "AssignUpdate");
    } else if (definition.op() == "AssignSubVariableOp") {
      Register<AssignUpdate<-1>>(definition, "AssignUpdate");
    } else if (NeedsCuda(definition.op())) {
      Register<Missing>(definition, "Missing");
    } else if (!has_resource) {
      Register<OnCpu>(definition, "OnCpu");
    }
  }
  KernelDef nccl;
  nccl.set_op("NcclAllReduce");
  nccl.set_device_type("GPU");
  Register<Nccl>(nccl, "Nccl");
}
