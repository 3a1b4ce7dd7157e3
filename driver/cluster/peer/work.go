package peer

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"pando.run/pando"
)

// works is the part of a client that collects work for bills.
type works struct{ client *Client }

// Work returns the work of a host after a mark.
func (w works) Work(
	ctx context.Context, h pando.Host, after pando.WorkMark,
) (out pando.WorkBatch, err error) {
	return out, w.client.get(ctx, h, "/peer/work", url.Values{
		"journal": {after.Journal}, "after": {strconv.FormatUint(after.Number, 10)}}, &out)
}

// workRoute answers a collection.
func workRoute(mux *http.ServeMux, a pando.HostAgent) {
	mux.HandleFunc("GET /peer/work", func(w http.ResponseWriter, r *http.Request) {
		after, err := number(r, "after")
		var b pando.WorkBatch
		if err == nil {
			m := pando.WorkMark{Journal: r.FormValue("journal"), Number: uint64(max(0, after))}
			b, err = a.Work(r.Context(), m)
		}
		answer(w, b, err)
	})
}
