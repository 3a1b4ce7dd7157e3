// Package systemd writes the units of the daemons, starts and stops them by systemctl, and tells
// systemd that a daemon is ready and alive.
//
// It never decides which daemons a host has. Every call does nothing, or reports ErrRefused,
// where systemd does not run.
package systemd

import (
	"fmt"
	"strings"
)

// Unit describes the service unit of one daemon.
type Unit struct {
	Name        string // such as pando-agent
	Description string
	Exec        []string // the program with its arguments
	After       []string // units that start before this one, if they start
	Log         string   // file for the output; its folder must exist
	Delegate    bool     // the daemon makes control groups below its own
	OOMScore    int      // the lower, the later the kernel ends it when memory is short
	// Capabilities bound those of the daemon and of all that it starts, such as CAP_CHOWN, or
	// "~CAP_SYS_TIME" for all but those. Empty: all.
	Capabilities []string
	// Folders are the only ones where the daemon may write. Empty: everywhere, as for a daemon that
	// mounts for others.
	Folders []string
}

// fences are the settings of a daemon that writes to a few folders only. It neither mounts nor
// changes the kernel, and its memory is bounded.
var fences = []string{
	"NoNewPrivileges=yes", "ProtectSystem=strict", "ProtectHome=read-only", "PrivateDevices=yes",
	"ProtectKernelTunables=yes", "ProtectKernelModules=yes", "ProtectKernelLogs=yes",
	"ProtectControlGroups=yes", "ProtectClock=yes", "ProtectHostname=yes",
	"RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK", "RestrictNamespaces=yes",
	"RestrictRealtime=yes", "RestrictSUIDSGID=yes", "LockPersonality=yes",
	"MemoryDenyWriteExecute=yes", "SystemCallArchitectures=native", "MemoryHigh=50%", "MemoryMax=75%",
}

// watchdogSeconds is how long a daemon may be silent. systemd then ends it with SIGABRT, which logs
// its stacks, and starts it again.
const watchdogSeconds = 60

// mark begins the files that Install writes.
const mark = "# Written by `pando install`; `pando uninstall` removes it."

// File returns the name of the unit's file.
func (u Unit) File() string { return u.Name + ".service" }

// Text returns the unit as systemd reads it. KillMode=process keeps instances alive when their
// agent ends. No start limit applies, because a host without a person must come back.
func (u Unit) Text() string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line(mark)
	line("[Unit]")
	line("Description=%s", u.Description)
	line("Wants=network-online.target")
	line("After=%s", strings.Join(append([]string{"network-online.target"}, u.After...), " "))
	line("StartLimitIntervalSec=0")
	line("\n[Service]")
	line("Type=notify")
	line("NotifyAccess=main")
	line("ExecStart=%s", command(u.Exec))
	if u.Log != "" {
		path := strings.ReplaceAll(u.Log, "%", "%%") // never quoted
		line("StandardOutput=append:%s", path)
		line("StandardError=append:%s", path)
	}
	line("Restart=always")
	line("RestartSec=1")
	line("TimeoutStartSec=300")
	line("TimeoutStopSec=30")
	line("WatchdogSec=%d", watchdogSeconds)
	line("KillMode=process")
	line("TasksMax=infinity")
	if u.Delegate {
		line("Delegate=yes")
	}
	if u.OOMScore != 0 {
		line("OOMScoreAdjust=%d", u.OOMScore)
	}
	if len(u.Capabilities) > 0 {
		line("CapabilityBoundingSet=%s", strings.Join(u.Capabilities, " "))
	}
	if len(u.Folders) > 0 {
		line("ExecStartPre=+%s", command(append([]string{"/bin/mkdir", "-p"}, u.Folders...)))
		line("ReadWritePaths=%s", command(u.Folders))
		for _, f := range fences {
			line("%s", f)
		}
	}
	line("\n[Install]")
	line("WantedBy=multi-user.target")
	return b.String()
}

// command quotes words for ExecStart: systemd splits at spaces and replaces $ and %.
func command(words []string) string {
	quote := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "%", "%%", "$", "$$", "\n", `\n`, "\t", `\t`)
	out := make([]string, len(words))
	for n, w := range words {
		out[n] = quote.Replace(w)
		if w == "" || strings.ContainsAny(w, " '\";\\\n\t") {
			out[n] = `"` + out[n] + `"`
		}
	}
	return strings.Join(out, " ")
}
