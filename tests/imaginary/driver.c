/* An imaginary NVIDIA driver: as much of NVML, and of CUDA's driver library, as the inventory asks for.
 *
 * It shows the machine that the file in $IMAGINARY_MACHINE describes, read anew by nvmlInit and by cuInit:
 *
 *   init CODE                      what nvmlInit answers
 *   driver VERSION CUDA            CUDA as 13000; 0: libcuda is missing
 *   card UUID TOTAL USED MAJOR MINOR MODE UTILISATION CODE OLD NAME
 *   part CARD UUID TOTAL USED NAME of a divided card
 *   process CARD PID MEMORY KIND   C computes, G draws; MEMORY -1: not told
 *   order CARD                     lines in CUDA's order
 *
 * Memory is in MB of a million bytes. CODE is what every question about the card is answered with (0, or 15: lost), OLD
 * is 1 where the driver knows the older question for memory only, UTILISATION -1 where it is not told.
 * Structures and numbers: nvml.h of CUDA 12, as in the package nvidia-ml-py. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, BAD_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, NO_LIBRARY = 12 };
#define MOST 32
#define MB 1000000ULL

typedef struct {
  char uuid[96], name[96];
  unsigned long long total, used;
  int major, minor, mode, utilisation, code, old, parent; /* parent: -1 of a whole card */
} Device;
typedef struct { int card, pid; long long memory; char kind; } Process;
typedef struct { unsigned int pid; unsigned long long memory; unsigned int instance, compute; } ProcessInfo;
typedef struct { unsigned int version; unsigned long long total, reserved, free, used; } MemoryV2;

static Device devices[MOST];
static Process processes[MOST];
static int cards, count, running, order[MOST], ordered, init_code, cuda;
static char driver[80];

static void read_machine(void) {
  char line[400];
  FILE *file = fopen(getenv("IMAGINARY_MACHINE"), "r");
  cards = count = running = ordered = init_code = cuda = 0;
  while (file && fgets(line, sizeof line, file)) {
    Device d = {.parent = -1};
    Process p;
    line[strcspn(line, "\n")] = 0;
    sscanf(line, "init %d", &init_code);
    sscanf(line, "driver %79s %d", driver, &cuda);
    if (sscanf(line, "card %95s %llu %llu %d %d %d %d %d %d %95[^\n]", d.uuid, &d.total, &d.used, &d.major, &d.minor,
               &d.mode, &d.utilisation, &d.code, &d.old, d.name) == 10)
      devices[count++] = d, cards++; /* cards come before parts */
    else if (sscanf(line, "part %d %95s %llu %llu %95[^\n]", &d.parent, d.uuid, &d.total, &d.used, d.name) == 5)
      d.utilisation = -1, devices[count++] = d;
    if (sscanf(line, "process %d %d %lld %c", &p.card, &p.pid, &p.memory, &p.kind) == 4) processes[running++] = p;
    if (sscanf(line, "order %d", &order[ordered]) == 1) ordered++;
  }
  if (file) fclose(file);
}

static int copy(char *to, unsigned size, const char *from) { return snprintf(to, size, "%s", from), OK; }

int nvmlInitWithFlags(unsigned flags) { return read_machine(), init_code; }
const char *nvmlErrorString(int code) { return "an imaginary error"; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { return copy(text, size, driver); }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { return (*version = cuda) ? OK : NO_LIBRARY; }
int nvmlDeviceGetCount_v2(unsigned *n) { return *n = cards, OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **d) { return *d = &devices[index], OK; }
int nvmlDeviceGetUUID(Device *d, char *text, unsigned size) { return d->code ? d->code : copy(text, size, d->uuid); }
int nvmlDeviceGetName(Device *d, char *text, unsigned size) { return d->code ? d->code : copy(text, size, d->name); }
int nvmlDeviceGetCudaComputeCapability(Device *d, int *major, int *minor) {
  return *major = d->major, *minor = d->minor, d->code;
}
int nvmlDeviceGetComputeMode(Device *d, int *mode) { return *mode = d->mode, d->code; }

int nvmlDeviceGetMemoryInfo(Device *d, unsigned long long memory[3]) {
  memory[0] = d->total * MB, memory[1] = (d->total - d->used) * MB, memory[2] = d->used * MB;
  return d->code;
}
int nvmlDeviceGetMemoryInfo_v2(Device *d, MemoryV2 *memory) {
  if (d->old) return NOT_SUPPORTED;
  memory->total = d->total * MB, memory->used = d->used * MB, memory->reserved = 0;
  memory->free = memory->total - memory->used;
  return d->code;
}
int nvmlDeviceGetUtilizationRates(Device *d, unsigned rates[2]) {
  if (d->utilisation < 0) return NOT_SUPPORTED;
  return rates[0] = d->utilisation, rates[1] = 0, d->code;
}

static int list(Device *d, unsigned *n, ProcessInfo *infos, char kind) {
  unsigned found = 0, room = *n;
  for (int i = 0; i < running; i++)
    if (&devices[processes[i].card] == d && processes[i].kind == kind) {
      if (infos && found < room)
        infos[found] = (ProcessInfo){processes[i].pid, processes[i].memory < 0 ? -1ULL : processes[i].memory * MB};
      found++;
    }
  return *n = found, d->code ? d->code : found > room ? TOO_SMALL : OK;
}
int nvmlDeviceGetComputeRunningProcesses_v3(Device *d, unsigned *n, ProcessInfo *p) { return list(d, n, p, 'C'); }
int nvmlDeviceGetGraphicsRunningProcesses_v3(Device *d, unsigned *n, ProcessInfo *p) { return list(d, n, p, 'G'); }

static Device *part(Device *d, unsigned index) {
  for (int i = cards; i < count; i++)
    if (&devices[devices[i].parent] == d && !index--) return &devices[i];
  return NULL;
}
int nvmlDeviceGetMigMode(Device *d, unsigned *mode, unsigned *pending) {
  return *mode = *pending = part(d, 0) != NULL, d->code;
}
int nvmlDeviceGetMaxMigDeviceCount(Device *d, unsigned *n) { return *n = 7, d->code; }
int nvmlDeviceGetMigDeviceHandleByIndex(Device *d, unsigned index, Device **found) {
  return (*found = part(d, index)) ? OK : NOT_FOUND;
}

int cuInit(unsigned flags) { return read_machine(), 0; }
int cuDeviceGetCount(int *n) { return *n = ordered, 0; }
int cuDeviceGet(int *device, int place) { return *device = order[place], 0; }
int cuDeviceGetUuid_v2(unsigned char *bytes, int device) {
  const char *text = devices[device].uuid + 4; /* behind "GPU-" */
  for (int i = 0; i < 16; text += 2) {
    if (*text == '-') text++;
    sscanf(text, "%2hhx", &bytes[i++]);
  }
  return 0;
}
