/* metal-cpp: buffers, heaps, events, indirect commands, argument buffers, handlers and errors. */
#define NS_PRIVATE_IMPLEMENTATION
#define MTL_PRIVATE_IMPLEMENTATION
#include <Foundation/Foundation.hpp>
#include <Metal/Metal.hpp>

#include <atomic>
#include <cstring>

#include "expect.h"

static const char *source = R"(
#include <metal_stdlib>
using namespace metal;
struct Things { device float *values; uint count; };
kernel void twice(device float *x [[buffer(0)]], uint i [[thread_position_in_grid]]) { x[i] *= 2; }
kernel void through(constant Things &t [[buffer(0)]], device float *y [[buffer(1)]],
                    uint i [[thread_position_in_grid]]) { if (i < t.count) y[i] = t.values[i] + 1; }
)";

static NS::String *text(const char *bytes) {
  return NS::String::string(bytes, NS::UTF8StringEncoding);
}

static MTL::ComputePipelineState *pipeline(MTL::Device *device, MTL::Library *library,
                                           const char *name) {
  NS::Error *error = nullptr;
  auto descriptor = NS::TransferPtr(MTL::ComputePipelineDescriptor::alloc()->init());
  auto function = NS::TransferPtr(library->newFunction(text(name)));
  descriptor->setComputeFunction(function.get());
  descriptor->setSupportIndirectCommandBuffers(true);
  auto made =
      device->newComputePipelineState(descriptor.get(), MTL::PipelineOptionNone, nullptr, &error);
  EXPECT(made && !error && made->maxTotalThreadsPerThreadgroup() == 1024);
  return made;
}

static void dispatch(MTL::Device *device, MTL::CommandQueue *queue,
                     MTL::ComputePipelineState *state) {
  auto heap_descriptor = NS::TransferPtr(MTL::HeapDescriptor::alloc()->init());
  heap_descriptor->setSize(1 << 16);
  heap_descriptor->setStorageMode(MTL::StorageModeShared);
  auto heap = NS::TransferPtr(device->newHeap(heap_descriptor.get()));
  auto buffer = NS::TransferPtr(heap->newBuffer(256, MTL::ResourceStorageModeShared));
  auto values = static_cast<float *>(buffer->contents());
  for (int i = 0; i < 64; i++) values[i] = float(i);
  auto event = NS::TransferPtr(device->newSharedEvent());
  MTL::CommandBuffer *commands = queue->commandBuffer();
  std::atomic<int> handled = 0;
  commands->addCompletedHandler([&](MTL::CommandBuffer *done) {
    handled += done->status() == MTL::CommandBufferStatusCompleted;
  });
  MTL::ComputeCommandEncoder *encoder = commands->computeCommandEncoder();
  encoder->setComputePipelineState(state);
  encoder->setBuffer(buffer.get(), 0, 0);
  encoder->dispatchThreads(MTL::Size(64, 1, 1), MTL::Size(32, 1, 1));
  encoder->endEncoding();
  commands->encodeSignalEvent(event.get(), 3);
  commands->commit();
  EXPECT(event->waitUntilSignaledValue(3, 60000));
  commands->waitUntilCompleted();
  EXPECT(handled == 1 && values[63] == 126);
}

static void indirect(MTL::Device *device, MTL::CommandQueue *queue,
                     MTL::ComputePipelineState *state) {
  auto descriptor = NS::TransferPtr(MTL::IndirectCommandBufferDescriptor::alloc()->init());
  descriptor->setCommandTypes(MTL::IndirectCommandTypeConcurrentDispatch);
  descriptor->setInheritBuffers(false);
  descriptor->setInheritPipelineState(false);
  descriptor->setMaxKernelBufferBindCount(1);
  auto icb = NS::TransferPtr(
      device->newIndirectCommandBuffer(descriptor.get(), 3, MTL::ResourceStorageModeShared));
  auto buffer = NS::TransferPtr(device->newBuffer(16, MTL::ResourceStorageModeShared));
  auto values = static_cast<float *>(buffer->contents());
  for (int i = 0; i < 4; i++) values[i] = 1;
  for (NS::UInteger i = 0; i < 3; i++) {
    MTL::IndirectComputeCommand *command = icb->indirectComputeCommand(i);
    command->setComputePipelineState(state);
    command->setKernelBuffer(buffer.get(), 0, 0);
    command->concurrentDispatchThreadgroups(MTL::Size(1, 1, 1), MTL::Size(4, 1, 1));
    command->setBarrier();
  }
  MTL::CommandBuffer *commands = queue->commandBuffer();
  MTL::ComputeCommandEncoder *encoder = commands->computeCommandEncoder();
  encoder->useResource(buffer.get(), MTL::ResourceUsageRead | MTL::ResourceUsageWrite);
  encoder->executeCommandsInBuffer(icb.get(), NS::Range(0, 3));
  encoder->endEncoding();
  commands->commit();
  commands->waitUntilCompleted();
  EXPECT(!commands->error() && values[0] == 8 && values[3] == 8);
}

static void arguments(MTL::Device *device, MTL::CommandQueue *queue, MTL::Library *library) {
  auto function = NS::TransferPtr(library->newFunction(text("through")));
  auto state = NS::TransferPtr(pipeline(device, library, "through"));
  auto arguments = NS::TransferPtr(function->newArgumentEncoder(0));
  auto table = NS::TransferPtr(
      device->newBuffer(arguments->encodedLength(), MTL::ResourceStorageModeShared));
  auto x = NS::TransferPtr(device->newBuffer(32, MTL::ResourceStorageModeShared));
  auto y = NS::TransferPtr(device->newBuffer(32, MTL::ResourceStorageModeShared));
  for (int i = 0; i < 8; i++) static_cast<float *>(x->contents())[i] = float(i);
  arguments->setArgumentBuffer(table.get(), 0);
  arguments->setBuffer(x.get(), 0, 0);
  uint32_t count = 8;
  std::memcpy(arguments->constantData(1), &count, sizeof count);
  MTL::CommandBuffer *commands = queue->commandBuffer();
  MTL::ComputeCommandEncoder *encoder =
      commands->computeCommandEncoder(MTL::DispatchTypeConcurrent);
  encoder->setComputePipelineState(state.get());
  encoder->setBuffer(table.get(), 0, 0);
  encoder->setBuffer(y.get(), 0, 1);
  const MTL::Resource *used[] = {x.get()};
  encoder->useResources(used, 1, MTL::ResourceUsageRead);
  encoder->dispatchThreads(MTL::Size(8, 1, 1), MTL::Size(8, 1, 1));
  encoder->memoryBarrier(MTL::BarrierScopeBuffers);
  encoder->endEncoding();
  commands->commit();
  commands->waitUntilCompleted();
  EXPECT(static_cast<float *>(y->contents())[7] == 8);
}

static void errors(MTL::Device *device) {
  NS::Error *error = nullptr;
  auto options = NS::TransferPtr(MTL::CompileOptions::alloc()->init());
  options->setLanguageVersion(MTL::LanguageVersion3_0);
  EXPECT(!device->newLibrary(text("kernel void k() { nonsense; }"), options.get(), &error));
  EXPECT(error && std::strstr(error->localizedDescription()->utf8String(), "nonsense"));
  EXPECT(device->name()->length() > 0 && device->supportsFamily(MTL::GPUFamilyMetal3));
}

int main() {
  auto pool = NS::TransferPtr(NS::AutoreleasePool::alloc()->init());
  auto device = NS::TransferPtr(MTL::CreateSystemDefaultDevice());
  auto queue = NS::TransferPtr(device->newCommandQueue());
  NS::Error *error = nullptr;
  auto library = NS::TransferPtr(device->newLibrary(text(source), nullptr, &error));
  EXPECT(library.get() && !error);
  auto state = NS::TransferPtr(pipeline(device.get(), library.get(), "twice"));
  dispatch(device.get(), queue.get(), state.get());
  indirect(device.get(), queue.get(), state.get());
  arguments(device.get(), queue.get(), library.get());
  errors(device.get());
  return failures;
}
