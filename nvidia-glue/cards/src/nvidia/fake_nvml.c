/* A library with NVML's interface and a fixed machine behind it, for the tests of discovery.
 *
 * NVML counts seven cards. 0 and 1 are sound and share an NVSwitch; 2 has fallen off the bus; 3 is split by MIG, with
 * gaps between its devices; 4 wants a reset; 5 supports nothing that it need not; 6 does not tell its memory.
 * Names and types are those of NVIDIA's nvml.h. What is not defined here is missing, as in an old driver. */
#include <stdio.h>
#include <string.h>

enum {
	SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, GPU_IS_LOST = 15,
	UNKNOWN = 999
};
enum { CARDS = 7, LOST = 2, MIG = 3, WANTS_RESET = 4, BARE = 5, NO_MEMORY = 6, MIG_SLOTS = 7 };

typedef struct { int card, mig; } device;
typedef device *nvmlDevice_t;
static device cards[CARDS];
static device mig_devices[MIG_SLOTS];

typedef struct {
	char bus_id_legacy[16];
	unsigned domain, bus, device, pci_device, pci_subsystem;
	char bus_id[32];
} nvmlPciInfo_t;
typedef struct { unsigned long long total, free, used; } nvmlMemory_t;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } nvmlMemory_v2_t;
typedef struct { unsigned pid; unsigned long long memory; unsigned gpu_instance, compute_instance; } nvmlProcessInfo_t;
typedef struct {
	unsigned field, scope;
	long long timestamp, latency;
	unsigned type, answer;
	union { double d; unsigned u; unsigned long long ull; } value;
} nvmlFieldValue_t;

int nvmlInit_v2(void)
{
	for (int i = 0; i < CARDS; i++)
		cards[i] = (device){ i, -1 };
	for (int i = 0; i < MIG_SLOTS; i++)
		mig_devices[i] = (device){ MIG, i };
	return SUCCESS;
}
int nvmlShutdown(void) { return SUCCESS; }
int nvmlSystemGetDriverVersion(char *text, unsigned length) { snprintf(text, length, "580.159.04"); return SUCCESS; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 13000; return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = CARDS; return SUCCESS; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *handle)
{
	if (index >= CARDS)
		return INVALID_ARGUMENT;
	if (index == LOST)
		return GPU_IS_LOST;
	*handle = &cards[index];
	return SUCCESS;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvmlDevice_t *handle)
{
	unsigned bus;

	if (sscanf(id, "0000:%x:00.0", &bus) != 1 || bus < 0x10)
		return INVALID_ARGUMENT;
	return nvmlDeviceGetHandleByIndex_v2(bus - 0x10, handle);
}

int nvmlDeviceGetUUID(nvmlDevice_t d, char *text, unsigned length)
{
	if (d->mig >= 0)
		snprintf(text, length, "MIG-00000000-0000-0000-0000-%012d", d->mig);
	else
		snprintf(text, length, "GPU-00000000-0000-0000-0000-%012d", d->card);
	return SUCCESS;
}
int nvmlDeviceGetName(nvmlDevice_t d, char *text, unsigned length)
{
	if (d->card == BARE)
		return UNKNOWN;
	snprintf(text, length, "NVIDIA H200");
	return SUCCESS;
}
int nvmlDeviceGetPciInfo_v3(nvmlDevice_t d, nvmlPciInfo_t *pci)
{
	memset(pci, 0, sizeof *pci);
	pci->bus = 0x10 + d->card;
	snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", pci->bus);
	return SUCCESS;
}
/* Not the index. */
int nvmlDeviceGetMinorNumber(nvmlDevice_t d, unsigned *minor) { *minor = CARDS - 1 - d->card; return SUCCESS; }
int nvmlDeviceGetBrand(nvmlDevice_t d, unsigned *brand)
{
	*brand = d->card == BARE ? 4711 : 14;
	return SUCCESS;
}
int nvmlDeviceGetCudaComputeCapability(nvmlDevice_t d, int *major, int *minor)
{
	*major = 9;
	*minor = 0;
	return d->card == BARE ? NOT_SUPPORTED : SUCCESS;
}
int nvmlDeviceGetMemoryInfo(nvmlDevice_t d, nvmlMemory_t *memory)
{
	if (d->card == NO_MEMORY)
		return NOT_SUPPORTED;
	memory->total = d->mig >= 0 ? 18ull << 30 : 141ull << 30;
	memory->free = memory->total;
	memory->used = 0;
	return SUCCESS;
}
#ifndef BEFORE_510
int nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t d, nvmlMemory_v2_t *memory)
{
	nvmlMemory_t first;
	int answer = nvmlDeviceGetMemoryInfo(d, &first);

	if (memory->version != (2u << 24 | sizeof *memory))
		return INVALID_ARGUMENT;
	memory->total = first.total;
	memory->reserved = memory->used = 0;
	memory->free = first.total;
	return answer;
}
#endif

int nvmlDeviceGetMigMode(nvmlDevice_t d, unsigned *current, unsigned *pending)
{
	*current = *pending = d->card == MIG;
	return d->card == BARE ? NOT_SUPPORTED : SUCCESS;
}
int nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t d, unsigned *count) { (void)d; *count = MIG_SLOTS; return SUCCESS; }
/* Slots 1 and 4 hold a device; gaps answer in two ways. Slot 5 holds one that does not tell its instances. */
int nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t d, unsigned index, nvmlDevice_t *handle)
{
	(void)d;
	if (index != 1 && index != 4 && index != 5)
		return index % 2 ? INVALID_ARGUMENT : NOT_FOUND;
	*handle = &mig_devices[index];
	return SUCCESS;
}
int nvmlDeviceGetGpuInstanceId(nvmlDevice_t d, unsigned *id) { *id = d->mig + 6; return d->mig == 5 ? UNKNOWN : SUCCESS; }
int nvmlDeviceGetComputeInstanceId(nvmlDevice_t d, unsigned *id) { *id = d->mig == 4; return SUCCESS; }

int nvmlDeviceGetGspFirmwareMode(nvmlDevice_t d, unsigned *enabled, unsigned *by_default)
{
	*enabled = *by_default = d->card < MIG;
	return d->card == BARE ? NOT_SUPPORTED : SUCCESS;
}

/* Two links of each sound card go into one NVSwitch; a third is down. There is no fourth. */
int nvmlDeviceGetNvLinkState(nvmlDevice_t d, unsigned link, unsigned *active)
{
	if (d->card > 1)
		return NOT_SUPPORTED;
	if (link > 2)
		return INVALID_ARGUMENT;
	*active = link < 2;
	return SUCCESS;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t d, unsigned link, nvmlPciInfo_t *pci)
{
	(void)d;
	memset(pci, 0, sizeof *pci);
	pci->bus = 0xc1 + link;
	return SUCCESS;
}
/* 5 is on a PCIe switch with 0, on 1's NUMA node, and nothing is known of the rest. */
int nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t a, nvmlDevice_t b, unsigned *level)
{
	int other = a->card == BARE ? b->card : a->card;
	if (a->card != BARE && b->card != BARE)
		return NOT_SUPPORTED;
	*level = other == 0 ? 10 : other == 1 ? 40 : 50;
	return SUCCESS;
}

int nvmlDeviceGetPersistenceMode(nvmlDevice_t d, unsigned *on)
{
	*on = d->card == 0;
	return d->card == BARE ? NOT_SUPPORTED : SUCCESS;
}

/* Field 230 is the recovery action. */
int nvmlDeviceGetFieldValues(nvmlDevice_t d, int count, nvmlFieldValue_t *values)
{
	for (int i = 0; i < count; i++) {
		values[i].type = 1;
		values[i].answer = values[i].field == 230 && d->card != BARE ? SUCCESS : NOT_SUPPORTED;
		values[i].value.u = d->card == WANTS_RESET;
	}
	return SUCCESS;
}

static int processes(const nvmlProcessInfo_t *have, unsigned many, unsigned *count, nvmlProcessInfo_t *infos)
{
	unsigned room = *count;
	*count = many;
	if (many > room || (many && !infos))
		return INSUFFICIENT_SIZE;
	if (many)
		memcpy(infos, have, many * sizeof *have);
	return SUCCESS;
}
int nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t d, unsigned *count, nvmlProcessInfo_t *infos)
{
	static const nvmlProcessInfo_t have[] = { { 100, 5 << 20, ~0u, ~0u }, { 200, ~0ull, ~0u, ~0u } };
	return processes(have, d->card == 0 ? 2 : 0, count, infos);
}
int nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t d, unsigned *count, nvmlProcessInfo_t *infos)
{
	static const nvmlProcessInfo_t have[] = { { 100, 7 << 20, ~0u, ~0u } };
	if (d->card == BARE)
		return NOT_SUPPORTED;
	return processes(have, d->card == 0, count, infos);
}

int nvmlDeviceGetTemperature(nvmlDevice_t d, unsigned sensor, unsigned *celsius)
{
	*celsius = 40 + d->card;
	return d->card == BARE || sensor ? NOT_SUPPORTED : SUCCESS;
}
int nvmlDeviceGetPowerUsage(nvmlDevice_t d, unsigned *milliwatts)
{
	*milliwatts = 120000;
	return d->card == BARE ? NOT_SUPPORTED : SUCCESS;
}
int nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t d, unsigned *milliwatts)
{
	*milliwatts = 700000;
	return d->card == BARE ? NOT_SUPPORTED : SUCCESS;
}
int nvmlDeviceGetTotalEccErrors(nvmlDevice_t d, unsigned kind, unsigned counter, unsigned long long *count)
{
	*count = d->card;
	return d->card == BARE || kind != 1 || counter ? NOT_SUPPORTED : SUCCESS;
}
