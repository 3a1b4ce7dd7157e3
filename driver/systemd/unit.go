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
}

// watchdogSeconds is how long a daemon may be silent. systemd then ends it with SIGABRT, which logs
// its stacks, and starts it again.
const watchdogSeconds = 60

// File returns the name of the unit's file.
func (u Unit) File() string { return u.Name + ".service" }

// Text returns the unit as systemd reads it. KillMode=process keeps instances alive when their
// agent ends. No start limit applies, because a host without a person must come back.
func (u Unit) Text() string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("# Written by `pando install`; `pando uninstall` removes it.")
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
