package peer

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"

	"pando.run/pando"
)

// VolumesPath is the path of the requests about the volumes of a host. Only the server may ask for
// it.
const VolumesPath = "/peer/volumes"

// VolumeFilesPath is the path of the archive of a host's volumes. Only the server may ask for it.
const VolumeFilesPath = "/peer/volumefiles"

// VolumesHandler adds the archive of the volumes of the host to the handler of its agent. write
// writes it.
func VolumesHandler(
	h http.Handler, write func(context.Context, io.Writer) error,
) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", h)
	mux.HandleFunc("GET "+VolumeFilesPath, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/x-tar")
		w.Header().Set("Trailer", wholeTrailer)
		if write(r.Context(), w) == nil {
			w.Header().Set(wholeTrailer, "true")
		}
	})
	return mux
}

// Volumes returns the volumes of a host.
func (c *Client) Volumes(
	ctx context.Context, h pando.Host, q pando.VolumeQuery,
) (out []pando.KeptVolume, err error) {
	v := url.Values{"volume": {q.Name}, "measure": {strconv.FormatBool(q.Measure)}}
	if q.Service.Name != "" {
		v.Set("tenant", string(q.Service.Tenant))
		v.Set("service", string(q.Service.Name))
	}
	return out, c.get(ctx, h, VolumesPath, v, &out)
}

// RemoveVolume deletes a volume of a service on a host.
func (c *Client) RemoveVolume(
	ctx context.Context, h pando.Host, s pando.ServiceKey, name string,
) error {
	var done struct{}
	return c.read(ctx, h, http.MethodDelete, VolumesPath, url.Values{
		"tenant": {string(s.Tenant)}, "service": {string(s.Name)}, "volume": {name}}, nil, &done)
}

// volumeRoutes serves the volumes of a host.
func volumeRoutes(mux *http.ServeMux, a pando.HostAgent) {
	mux.HandleFunc("GET "+VolumesPath, func(w http.ResponseWriter, r *http.Request) {
		q := pando.VolumeQuery{Name: r.FormValue("volume"), Measure: r.FormValue("measure") == "true"}
		var err error
		if r.FormValue("service") != "" {
			q.Service, err = service(r)
		}
		var all []pando.KeptVolume
		if err == nil {
			all, err = a.Volumes(r.Context(), q)
		}
		answer(w, all, err)
	})
	mux.HandleFunc("DELETE "+VolumesPath, func(w http.ResponseWriter, r *http.Request) {
		s, err := service(r)
		name := r.FormValue("volume")
		if err == nil && name == "" {
			err = fmt.Errorf("%w: the request names no volume", pando.ErrInvalid)
		}
		if err == nil {
			err = a.RemoveVolume(r.Context(), s, name)
		}
		answer(w, struct{}{}, err)
	})
}
