// Browsers start no workers for pages that are opened from a disk; the search of the site is one. Here a hidden frame
// takes its place: it runs the same script, and messages go to and fro as events.
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.onmessage = this.onerror = null;
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.inner = frame.contentWindow;
      this.inner.postMessage = (data) => this.tell(this, data);
      this.inner.importScripts = (...files) => Promise.all(files.map((file) => this.run(file)));
      this.ready = this.run(url);
    }

    run(url) {
      return new Promise((done, failed) => {
        const script = this.inner.document.createElement("script");
        script.src = new URL(url, document.baseURI).href;
        script.onload = done;
        script.onerror = failed;
        this.inner.document.body.append(script);
      });
    }

    tell(whom, data) {
      const event = new MessageEvent("message", { data });
      whom.dispatchEvent(event);
      if (typeof whom.onmessage === "function") whom.onmessage(event);
    }

    postMessage(data) {
      this.ready.then(() => this.tell(this.inner, data));
    }

    terminate() {
      this.inner.frameElement?.remove();
    }
  };
}
