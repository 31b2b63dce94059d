// A device guard for CUDA that does nothing: a torch that was built without CUDA has none, and autograd asks for one.
#include <c10/core/impl/DeviceGuardImplInterface.h>
C10_REGISTER_GUARD_IMPL(CUDA, c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA>);
