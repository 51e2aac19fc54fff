/* The driver's ioctls that remap.c and park.c make, declared from the open kernel modules, tag 580.142:
 * nvos.h, nv-unix-nvos-params-wrappers.h, uvm_ioctl.h, uvm_types.h, ctrl2080fifo.h. */
#include <stdint.h>

enum { NR_ALLOC_MEMORY = 0x27, NR_FREE = 0x29, NR_CONTROL = 0x2a, NR_ALLOC = 0x2b, NR_DUP = 0x34, NR_SHARE = 0x35, NR_MAP = 0x4e, NR_UNMAP = 0x4f };
enum { UVM_MAP_EXTERNAL = 33, UVM_FREE_RANGE = 34, UVM_UNMAP = 66, UVM_CREATE_EXTERNAL = 73 };
enum { CLASS_SYSTEM = 0x3e, CLASS_VIDEO = 0x40, CLASS_OS_DESCRIPTOR = 0x71, CLASS_DEVICE = 0x80, CLASS_SUBDEVICE = 0x2080, CLASS_THIRD_PARTY_P2P = 0x503c };
enum { CONTROL_DISABLE_CHANNELS = 0x2080110b, CONTROL_EXPORT_TO_FD = 0x3d05 };

struct rm_free { /* NVOS00_PARAMETERS */
    uint32_t client, parent, object, status;
};
struct rm_alloc { /* NVOS64_PARAMETERS */
    uint32_t client, parent, object, class;
    uint64_t params, rights;
    uint32_t params_size, flags, status, padding;
};
struct rm_memory { /* NV_MEMORY_ALLOCATION_PARAMS */
    uint32_t owner, type, flags, width, height;
    int32_t pitch;
    uint32_t attr, attr2, format, compression, zcull, padding;
    uint64_t low, high, size, alignment, offset, limit, address;
    uint32_t comptag_offset, va_space, internal_flags, tag;
    int32_t numa_node;
    uint32_t padding2;
};
struct rm_control { /* NVOS54_PARAMETERS */
    uint32_t client, object, command, flags;
    uint64_t params;
    uint32_t params_size, status;
};
struct rm_dup { /* NVOS55_PARAMETERS */
    uint32_t client, parent, object, source_client, source_object, flags, status;
};
struct rm_share { /* NVOS57_PARAMETERS with RS_SHARE_POLICY */
    uint32_t client, object, target, rights;
    uint16_t type;
    uint8_t action, padding;
    uint32_t status;
};
enum { SHARE_ALL = 1, SHARE_SECURITY_TOKEN = 2, SHARE_CLIENT = 3 };
struct export_to_fd { /* NV0000_CTRL_OS_UNIX_EXPORT_OBJECT_TO_FD_PARAMS */
    uint32_t type, device, parent, object;
    int32_t fd;
    uint32_t flags;
};
/* NV_CHANNEL_ALLOC_PARAMS: where hUserdMemory[0] and userdOffset[0] are */
enum { CHANNEL_USERD_MEMORY = 32, CHANNEL_USERD_OFFSET = 64, CHANNEL_ENGINE = 128, USERD_GP_GET = 0x88, USERD_GP_PUT = 0x8c };
struct uvm_unmap { /* UVM_UNMAP_EXTERNAL_PARAMS */
    uint64_t base, length;
    uint8_t uuid[16];
    uint32_t status, padding;
};
struct rm_map { /* nv_ioctl_nvos33_parameters_with_fd */
    uint32_t client, device, memory, padding;
    uint64_t offset, length, linear;
    uint32_t status, flags;
    int32_t fd;
    uint32_t padding2;
};
struct rm_unmap { /* NVOS34_PARAMETERS */
    uint32_t client, device, memory, padding;
    uint64_t linear;
    uint32_t status, flags;
};
struct rm_alloc_memory { /* nv_ioctl_nvos02_parameters_with_fd */
    uint32_t client, parent, object, class, flags, padding;
    uint64_t memory, limit;
    uint32_t status, padding2;
    int32_t fd;
    uint32_t padding3;
};
struct disable_channels { /* NV2080_CTRL_FIFO_DISABLE_CHANNELS_PARAMS */
    uint8_t disable, padding[3];
    uint32_t count;
    uint8_t only_scheduling, rewind, padding2[6];
    uint64_t event;
    uint32_t clients[64], channels[64];
};
struct uvm_attributes { /* UvmGpuMappingAttributes */
    uint8_t uuid[16];
    uint32_t mapping_type, caching_type, format_type, element_bits, compression_type;
};
struct uvm_map { /* UVM_MAP_EXTERNAL_ALLOCATION_PARAMS, since 550 */
    uint64_t base, length, offset;
    struct uvm_attributes gpus[256];
    uint64_t gpu_count;
    int32_t rm_file;
    uint32_t client, memory, status;
};
struct uvm_range { /* UVM_CREATE_EXTERNAL_RANGE_PARAMS, UVM_FREE_PARAMS */
    uint64_t base, length;
    uint32_t status, padding;
};

/* NVOS32_ATTR of class 0x3e */
#define ATTR_PCI (1u << 25)
#define ATTR_CPU_CACHED (1u << 29)
#define ATTR_NONCONTIGUOUS (1u << 27)
#define ATTR_CONTIGUOUS (2u << 27)
#define ATTR_PAGE_4K (1u << 23)
#define ATTR_PAGE_BIG (2u << 23)
#define ATTR_PAGE_HUGE (3u << 23)
#define ATTR2_HUGE_2M (1u << 20)
