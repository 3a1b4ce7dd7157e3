package uplink

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// Requests of the kernel's linux/ethtool.h.
const (
	ethtoolGetSettings = 1 // ETHTOOL_GSET
	speedUnknown       = 0xffffffff
)

// settings is struct ethtool_cmd.
type settings struct {
	command   uint32
	_         [2]uint32
	speed     uint16 // the low half, in Mbit/s
	_         [6]uint8
	_         [2]uint32
	speedHigh uint16
	_         [2]uint8
	_         [3]uint32
}

// speedOf returns the speed of a device of this network namespace in bytes a second; 0 if it is not
// known.
func speedOf(device string) float64 {
	if len(device) >= unix.IFNAMSIZ {
		return 0
	}
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	defer unix.Close(s)
	asked := settings{command: ethtoolGetSettings}
	request := struct { // struct ifreq
		name [unix.IFNAMSIZ]byte
		data *settings
		_    [16]byte
	}{data: &asked}
	copy(request.name[:], device)
	if _, _, failed := unix.Syscall(unix.SYS_IOCTL, uintptr(s), unix.SIOCETHTOOL,
		uintptr(unsafe.Pointer(&request))); failed != 0 {
		return 0
	}
	speed := uint32(asked.speedHigh)<<16 | uint32(asked.speed)
	if speed == speedUnknown {
		return 0
	}
	return float64(speed) * 1e6 / 8
}
