package pando

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// VolumesMax bounds the volumes of one spec, and its folders in memory.
const VolumesMax = 16

// Volume is a folder of a service that outlives its instances. The service's home has it.
//
// A volume of its own belongs to one ordinal: no two instances ever have it at the same time. A
// shared volume is the same folder in all instances.
type Volume struct {
	Name     string `json:"name"`
	Path     string `json:"path"` // in the instance
	Shared   bool   `json:"shared,omitempty"`
	ReadOnly bool   `json:"read_only,omitempty"`
	Bytes    int64  `json:"bytes,omitempty"` // at most, of each part; see BytesMax
	// Of is the service of the tenant whose volume it is. The instances then run on the home of that
	// service. "": the service's own.
	Of ServiceName `json:"of,omitempty"`
}

// Owner returns the service whose volume it is, for an instance of s.
func (v Volume) Owner(s ServiceKey) ServiceKey {
	if v.Of != "" {
		s.Name = v.Of
	}
	return s
}

// VolumeBytes bounds each part of a tenant's volume without a size in its spec.
const VolumeBytes = 10 << 30

// VolumeBytesMax is the largest size of a volume.
const VolumeBytesMax = 1 << 50

// volumeBytesPerFile is the size of a volume for which it may have one file. File systems are made
// with an inode for that many bytes.
const volumeBytesPerFile = 16 << 10

// volumeFilesLeast is the number of files that the smallest volume may have.
const volumeFilesLeast = 4096

// BytesMax returns the bytes that a part of the volume may have, or 0 for no limit. The volumes of
// operators, who have the tenant default, have a limit only by their spec.
func (v Volume) BytesMax(t Tenant) int64 {
	if v.Bytes == 0 && t != DefaultTenant {
		return VolumeBytes
	}
	return v.Bytes
}

// FilesMax returns the files that a part of the volume may have, or 0 for no limit.
func (v Volume) FilesMax(t Tenant) int64 {
	if most := v.BytesMax(t); most > 0 {
		return max(most/volumeBytesPerFile, volumeFilesLeast)
	}
	return 0
}

// VolumeSize is what a volume of a service may take of the disks of its hosts.
type VolumeSize struct {
	Name  string `json:"name"`
	Parts int    `json:"parts"` // so many folders there were at most
	Bytes int64  `json:"bytes"` // of each
}

// SizesMax bounds the volumes of one service, with those of former revisions.
const SizesMax = 4 * VolumesMax

// KeepSizes returns the sizes of the volumes of a service once an instance of a spec has an ordinal.
// Volumes that the spec no longer has stay on their hosts, so they stay in the list.
func KeepSizes(known []VolumeSize, s Spec, ordinal int) []VolumeSize {
	out := slices.Clone(known)
	for _, v := range s.Volumes {
		at := slices.IndexFunc(out, func(o VolumeSize) bool { return o.Name == v.Name })
		if at < 0 {
			at, out = len(out), append(out, VolumeSize{Name: v.Name})
		}
		parts := max(1, ordinal)
		if v.Shared {
			parts = 1
		}
		out[at].Parts = max(out[at].Parts, parts)
		out[at].Bytes = v.BytesMax(s.Key().Tenant)
	}
	return out
}

// SumSizes returns the bytes of all parts of volumes.
func SumSizes(all []VolumeSize) (bytes int64) {
	for _, v := range all {
		bytes += int64(v.Parts) * v.Bytes
	}
	return bytes
}

// Part returns the name of the folder of an instance with an ordinal.
func (v Volume) Part(ordinal int) string {
	if v.Shared {
		return "shared"
	}
	return fmt.Sprint(ordinal)
}

// Tmpfs is an empty folder in memory that ends with its instance.
type Tmpfs struct {
	Path  string `json:"path"`
	Bytes int64  `json:"bytes,omitempty"` // TmpfsBytes
	Mode  uint32 `json:"mode,omitempty"`  // 1777 octal
	// NoExec forbids to start programs from it.
	NoExec bool `json:"no_exec,omitempty"`
}

// TmpfsBytes bounds a folder in memory without a size in its spec, like the other files of an
// instance that are in memory. The limit of memory counts both.
const TmpfsBytes = 512 << 20

// Binds returns the folders of the host that the instances see at a path of their own, or in an
// image. At is set in each.
func (s Spec) Binds() (out []Folder) {
	for _, f := range s.Folders {
		if f.At == "" && s.Image.Reference != "" {
			f.At = f.Path
		}
		if f.At != "" {
			out = append(out, f)
		}
	}
	return out
}

// Ordinals reports whether each instance of the service has volumes or an endpoint of its own.
func (s Spec) Ordinals() bool {
	if len(s.Endpoints) > 0 {
		return true
	}
	for _, v := range s.Volumes {
		if !v.Shared {
			return true
		}
	}
	return false
}

// VolumeHome is the record of the host with the volumes of a removed service. A later deploy of the
// service starts there.
type VolumeHome struct {
	Service ServiceKey `json:"service"`
	Host    HostName   `json:"host"`
	At      time.Time  `json:"at"`             // of the removal
	Roll    *Roll      `json:"roll,omitempty"` // of a stateful service, which has no one Host
	// Sizes count against the quota of its tenant until the volumes are removed.
	Sizes []VolumeSize `json:"sizes,omitempty"`
}

// Key returns the key of the record.
func (v VolumeHome) Key() Key { return VolumeHomeKey(v.Service) }

// VolumeHomeKey returns the key of the host with the volumes of a removed service.
func VolumeHomeKey(s ServiceKey) Key {
	return MakeKey(KindVolumes, string(s.Tenant), string(s.Name))
}

// VolumeQuery chooses volumes.
type VolumeQuery struct {
	Service ServiceKey // zero: of all services
	Name    string     // "": all volumes
	Measure bool       // also their sizes, for which their host reads every folder
}

// Wants reports whether a query chooses the volume of a service.
func (q VolumeQuery) Wants(s ServiceKey, name string) bool {
	return (q.Service.Name == "" || q.Service == s) && (q.Name == "" || q.Name == name)
}

// KeptVolume is a folder of a volume on a host: one line of `pando volume ls`.
type KeptVolume struct {
	Service ServiceKey `json:"service"`
	Name    string     `json:"name"`
	Part    string     `json:"part"` // an ordinal, or "shared"
	Host    HostName   `json:"host"`
	Path    string     `json:"path"` // on the host
	UID     uint32     `json:"uid"`  // the owner of its folder
	Bytes   int64      `json:"bytes,omitempty"`
	Files   int64      `json:"files,omitempty"`
	// Partial reports that the folder has more than the measured bytes and files.
	Partial bool `json:"partial,omitempty"`
	// Instances have the volume now. It comes from the records of the cluster.
	Instances []InstanceID `json:"instances,omitempty"`
	// Missing is the reason why the volumes of a host are unknown. Only Host has a value then.
	Missing string `json:"missing,omitempty"`
}

// Volumes keeps the volumes of one host. driver/sandbox/process implements it with folders.
type Volumes interface {
	// KeptVolumes returns the volumes of this host, sorted by service, name and part.
	KeptVolumes(ctx context.Context, q VolumeQuery) ([]KeptVolume, error)
	// RemoveVolume deletes a volume of a service with all its parts. ErrConflict: an instance has
	// it. ErrNotFound: this host has no such volume.
	RemoveVolume(ctx context.Context, s ServiceKey, name string) error
}

// VolumePart is one folder of a volume.
type VolumePart struct {
	Service ServiceKey
	Name    string
	Part    string // an ordinal, or "shared"
}

// String returns the part in words.
func (p VolumePart) String() string {
	return fmt.Sprintf("volume %s/%s of %s", p.Name, p.Part, p.Service)
}

// VolumeUse is what a part of a volume takes of the disk.
type VolumeUse struct {
	Bytes, Files int64
	Partial      bool // it has more, and the time for measuring it was over
	Deep         bool // it has folders below VolumeDepthMax, which are not measured
}

// VolumeDepthMax bounds the folders in each other of a volume. A host reads and removes the folders
// that a program made, and each level is a file that it has open.
const VolumeDepthMax = 256

// DiskRoom is the room on the disk with the volumes of a host.
type DiskRoom struct{ Bytes, Free int64 }

// The reserve of a disk: DiskReserve, or a quarter of a small disk.
const (
	DiskReserve      = 2 << 30
	diskReserveShare = 4
)

// Reserve returns the bytes of the disk that tenants leave free. The store of the cluster and the
// daemons write there.
func (r DiskRoom) Reserve() int64 { return min(DiskReserve, r.Bytes/diskReserveShare) }

// Floor returns the free bytes below which tenants write nothing more: no state, images, snapshots,
// and no start of an instance with volumes. Volumes that grow are stopped from Reserve on.
func (r DiskRoom) Floor() int64 { return r.Reserve() / 2 }

// Disk measures the disk with the volumes of a host. driver/sandbox/process implements it.
type Disk interface {
	// Room returns the room of the disk. It is one system call.
	Room() (DiskRoom, error)
	// MeasureVolume reads all folders of a part. A part that is not there takes nothing.
	MeasureVolume(ctx context.Context, p VolumePart) (VolumeUse, error)
}

// namedMax is the number of names that Few writes out.
const namedMax = 8

// Few returns the first names of a list as text, and the number of the others.
func Few(names []string) string {
	text := strings.Join(names[:min(len(names), namedMax)], ", ")
	if more := len(names) - namedMax; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
