let e;function t(o){return e||(e=document.createElement("span"),e.hidden=!0,document.body.append(e)),e.style.color=`var(${o})`,getComputedStyle(e).color}export{t as r};
